"""Statements of SQLAlchemy that are compiled once for all engines of a process: here there is an engine for each test.

To compile what a test sends took more than a third of its time.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine
from sqlalchemy.util import LRUCache

_MOST = 5_000


class _Shared(LRUCache[Any, Any]):
    """Takes the dialect out of a key: it stands first, and all engines have one of the same kind to the same server."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1:], default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key[1:], value)


def share() -> None:
    shared = _Shared(_MOST)
    Engine._compiled_cache = property(lambda _: shared, lambda _, own: None)  # type: ignore[assignment]
