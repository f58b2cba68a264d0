"""`tokenmill indexes …`: indexes of collections on a running server.

Knows no passage; what is found, the server finds.
"""
