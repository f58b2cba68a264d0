"""Reviews of completed extractions: open values, claims, decisions, and their results.

Records are never changed; people's decisions are stored beside them.
"""
