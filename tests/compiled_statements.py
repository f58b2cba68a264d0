"""A cache of compiled SQLAlchemy statements for all engines of a process, since each test has its own engine.

Compiling a test's statements took more than a third of its time.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine
from sqlalchemy.util import LRUCache

_MOST = 5_000


class _Shared(LRUCache[Any, Any]):
    """Removes the dialect, the first part, from a key: all engines have equal ones for the same server."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1:], default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key[1:], value)


def share() -> None:
    shared = _Shared(_MOST)
    Engine._compiled_cache = property(lambda _: shared, lambda _, own: None)  # type: ignore[assignment]
