"""Readers by format: each turns the bytes of a file into a document.

The caller limits their time and memory.
"""
