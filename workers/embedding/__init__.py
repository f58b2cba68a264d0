"""The worker of a model that answers with vectors: its lines by groups, under the leases and flushes of all chunks.

Knows no engine of tokens.
"""
