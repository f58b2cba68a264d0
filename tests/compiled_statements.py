"""What all engines of a process share, since each test has its own: compiled statements, and what their server is.

Compiling a test's statements took more than a third of its time, and asking the server 4 ms of CPU for each engine.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.util import LRUCache

_MOST = 5_000
_OWN = "_type_memos"
"""What belongs to one engine."""


class _Shared(LRUCache[Any, Any]):
    """Removes the dialect, the first part, from a key: all engines have equal ones for the same server."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1:], default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key[1:], value)


def share() -> None:
    shared = _Shared(_MOST)
    Engine._compiled_cache = property(lambda _: shared, lambda _, own: None)  # type: ignore[assignment]
    _share_answers()


def _share_answers() -> None:
    """Ask a server once for a user: an engine's first connection asks for the version, the schema, types and more."""
    answers: dict[URL, dict[str, Any]] = {}
    ask = PGDialect_psycopg.initialize

    def initialize(dialect: PGDialect_psycopg, connection: Connection) -> None:
        server = connection.engine.url.set(database=None)
        if server not in answers:
            before = dict(vars(dialect))
            ask(dialect, connection)
            new = {name: value for name, value in vars(dialect).items() if before.get(name) is not value}
            answers[server] = {name: value for name, value in new.items() if name != _OWN}
        vars(dialect).update(answers[server])

    PGDialect_psycopg.initialize = initialize  # type: ignore[method-assign]
