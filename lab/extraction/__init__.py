"""Benchmarks of extraction on generated documents and texts, and the writer of PDFs that they and the tests use."""
