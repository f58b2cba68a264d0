"""The worker of a model that answers with vectors or scores: its lines by groups, under the leases of all chunks.

Knows no engine of tokens.
"""
