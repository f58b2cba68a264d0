"""Bodies of collections, extractions, reviews and records."""
