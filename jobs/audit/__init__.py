"""Audit: verify on live data that nothing is missing, repeated or billed twice.

Reads only and repairs nothing.
"""
