"""A real Postgres and a real Valkey as child processes of ours, out of pinned PyPI wheels, or on request from PATH."""
