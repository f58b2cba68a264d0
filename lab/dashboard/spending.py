"""The cost of a page: statements, their duration, and the CPU time of Postgres' processes and of the API.

On a busy machine a statement's duration includes waiting for a core; CPU time is the actual cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, text

from lab.chaos.stack import children_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The cost since some moment, or of one page."""

    statements: int
    elapsed_ms: float
    """Of the statements, including planning."""
    processor_ms: float
    """Of Postgres."""
    api_ms: float
    """Of the API's threads."""

    def __sub__(self, other: Spent) -> Spent:
        return Spent(
            statements=self.statements - other.statements,
            elapsed_ms=self.elapsed_ms - other.elapsed_ms,
            processor_ms=self.processor_ms - other.processor_ms,
            api_ms=self.api_ms - other.api_ms,
        )


class Meter:
    """Reads through its own connection, which it does not count."""

    def __init__(self, connection: Connection, *, postgres_pid: int, api_pid: int) -> None:
        self._connection = connection
        self._postgres_pid = postgres_pid
        self._own_pid = connection.scalar(text("SELECT pg_backend_pid()"))
        self._threads = Path(f"/proc/{api_pid}/task")
        self._of_postgres: dict[int, int] = {}
        """Nanoseconds, including ended processes."""
        self._of_api: dict[int, int] = {}

    def read(self) -> Spent:
        """Return the cost so far."""
        row = self._connection.execute(_COUNTED).one()
        for child in children_of(self._postgres_pid):
            if child.pid != self._own_pid:
                self._of_postgres[child.pid] = _nanoseconds(child.pid) or self._of_postgres.get(child.pid, 0)
        for thread in self._threads.iterdir():
            thread_id = int(thread.name)
            self._of_api[thread_id] = _nanoseconds(thread_id) or self._of_api.get(thread_id, 0)
        return Spent(
            statements=int(row.calls),
            elapsed_ms=float(row.elapsed_ms),
            processor_ms=sum(self._of_postgres.values()) / 1e6,
            api_ms=sum(self._of_api.values()) / 1e6,
        )


def _nanoseconds(thread_id: int) -> int:
    """Return the CPU time of a thread so far; a process of Postgres is one thread."""
    try:
        return int(Path(f"/proc/{thread_id}/schedstat").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return 0


_COUNTED = text("""
    SELECT coalesce(sum(calls), 0) AS calls, coalesce(sum(total_exec_time + total_plan_time), 0) AS elapsed_ms
    FROM pg_stat_statements
    WHERE query NOT LIKE '%pg_stat_statements%' AND query NOT IN ('BEGIN', 'COMMIT', 'ROLLBACK')
""")
