"""`tokenmill batch …`: batches on a running server, through its API."""
