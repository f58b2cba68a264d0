"""Postgres: connections, sessions and transactions, locks, the schema's state, and errors for callers.

Independent of tables.
"""

from __future__ import annotations

from jobs.database.by_id import find_row, fresh_row, locked_row
from jobs.database.connections import BRIEF_SECONDS, connect
from jobs.database.failures import reported_as_service_error
from jobs.database.kept_session import KeptSession
from jobs.database.schema import MIGRATIONS, head_revision, is_ready, upgrade, wait_until_ready
from jobs.database.transactions import (
    advisory_lock,
    autocommit,
    clock,
    sessions,
    stream,
    transaction,
    try_advisory_lock,
)

__all__ = [
    "BRIEF_SECONDS",
    "MIGRATIONS",
    "KeptSession",
    "advisory_lock",
    "autocommit",
    "clock",
    "connect",
    "find_row",
    "fresh_row",
    "head_revision",
    "is_ready",
    "locked_row",
    "reported_as_service_error",
    "sessions",
    "stream",
    "transaction",
    "try_advisory_lock",
    "upgrade",
    "wait_until_ready",
]
