"""Follows batches on a server: progress, displays, and retries while the server is unreachable."""
