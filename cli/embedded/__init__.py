"""A real Postgres and a real Valkey as child processes of ours, found on PATH or taken from PyPI wheels."""
