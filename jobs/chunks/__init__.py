"""Chunks: picked by fair share, leased under a fence, their results recorded once.

Knows of a batch only its lock and its counters.
"""
