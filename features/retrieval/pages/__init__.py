"""Pages of indexes."""
