"""Alembic's scripts: how the schema of `jobs.tables` came to be, step by step."""
