"""`/v1/indexes`: the HTTP routes of `features.retrieval`."""
