"""`/v1/indexes`: indexes of collections, and searches in them.

Knows no passage; what is found, `features.retrieval.searching` finds.
"""
