"""Pages of lines."""
