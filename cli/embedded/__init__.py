"""Postgres and Valkey as child processes, from pinned PyPI wheels or on request from PATH."""
