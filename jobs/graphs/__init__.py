"""Graphs of batches, advanced by control workers: pipeline runs, extractions and indexes.

Covers claims, waits, retries and ends; what a graph does is defined elsewhere.
"""
