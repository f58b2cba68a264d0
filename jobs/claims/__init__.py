"""Fenced claims: which worker has a row, and until when; and work that is done under one.

Every table whose claims have a fence uses these: chunks, batches, runs, extractions, indexes, input counts, uploads
and deliveries.
"""
