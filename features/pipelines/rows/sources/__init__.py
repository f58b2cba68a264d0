"""Reads users' tables row by row in constant memory: JSONL, CSV and Parquet from files, folders and object stores."""
