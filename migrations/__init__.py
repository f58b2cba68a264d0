"""Alembic migrations: the schema of `jobs.tables` since the baseline, and the bridge from earlier schemas."""
