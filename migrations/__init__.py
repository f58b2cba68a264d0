"""Alembic's scripts: the schema of `jobs.tables` from its baseline on, and the bridge from what was before."""
