"""`/v1/batches` and what belongs to a batch: submitting in every way, looking, changing, and results.

Knows no file but those that it makes, and no SQL.
"""
