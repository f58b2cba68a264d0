"""Compare the engine with other engines on the same token ids: one process each, one after the other."""
