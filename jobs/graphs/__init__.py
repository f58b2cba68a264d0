"""Graphs of batches, which control workers take as far as they go: runs of pipelines, extractions and indexes.

Knows not what one does; only that it is claimed, waits, is tried again and ends.
"""
