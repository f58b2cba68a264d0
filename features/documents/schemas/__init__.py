"""Request and response bodies of collections, extractions, reviews and records."""
