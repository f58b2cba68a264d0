"""`/v1/batches` and everything of a batch: submission, reading, changes, results, estimates and events."""
