"""Chunks: pick by fair share, lease under a fence, record each result once.

Uses only the lock and the counters of a batch.
"""
