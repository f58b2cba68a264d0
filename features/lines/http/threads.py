"""The threads of an API process in which lines are read from the object store."""

from __future__ import annotations

from anyio import CapacityLimiter

from api.services import Services
from jobs.settings import Settings
from jobs.storage import Storage

_PAGES = 8
_SEARCHES = 4


class LineThreads:
    """Limits of threads: a store may hang, and searches must not keep pages waiting."""

    def __init__(self) -> None:
        self.pages = CapacityLimiter(_PAGES)
        self.searches = CapacityLimiter(_SEARCHES)

    def close(self) -> None:
        """Close nothing."""


def open_threads(_settings: Settings, _storage: Storage) -> LineThreads:
    """Return the threads of an API process."""
    return LineThreads()


def threads_of(services: Services) -> LineThreads:
    """Return what `open_threads` made for this process."""
    threads = services.of_features["lines"]
    assert isinstance(threads, LineThreads)
    return threads
