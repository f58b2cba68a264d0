"""Batches: lines of requests that are worked off, and the files of their results."""
