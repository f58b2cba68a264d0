"""Answers as columns beside those of their rows, in JSONL, CSV or Parquet.

Knows no prompt and no server: rows and answers in, bytes of one table out.
"""
