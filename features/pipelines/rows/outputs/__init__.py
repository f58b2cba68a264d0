"""Answers as columns beside those of their rows, written as JSONL, CSV or Parquet."""
