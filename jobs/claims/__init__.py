"""Fenced claims on rows, and the work that is done under one.

Used by every table whose claims carry a fence: chunks, batches, runs, extractions, indexes, input counts, uploads and
deliveries.
"""
