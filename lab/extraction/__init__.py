"""Benchmarks of extraction, on documents and texts made from a seed, and the PDFs that they and the tests read."""
