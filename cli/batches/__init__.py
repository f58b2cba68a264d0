"""`tokenmill batch …`: batches on a running server.

Knows no SQL: everything goes through the API.
"""
