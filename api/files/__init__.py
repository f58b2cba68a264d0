"""`/v1/files`: files come up, are looked at and go down again, and tables among them become inputs of batches.

Knows no batch, and no SQL.
"""
