"""Tables of users, row by row: JSONL, CSV and Parquet from files, folders and object stores; memory stays flat.

Knows no prompt and no batch; what a row means is not its business, only where it stands.
"""
