"""Fenced claims: which worker has a row, and until when; and work that is done under one.

Every table whose rows are claimed uses these: chunks, batches, runs, extractions, indexes, counts, uploads, deliveries.
"""
