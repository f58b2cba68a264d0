"""Documents: read, and turned into records whose values are shown where they stand."""
