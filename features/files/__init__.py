"""Files: what tenants upload and what batches write, in the object store."""
