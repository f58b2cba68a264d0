"""Places where a worker can be killed, overtaken or refused: its commits, and its requests to the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from obstore.exceptions import GenericError
from sqlalchemy import event
from sqlalchemy.orm import Session

from jobs.storage import ObjectWriter, Storage
from tests.effects import Effects, Killed, WatchedMaker

BEFORE = frozenset({"commit", "object", "delete"})
"""Effects that are about to happen. Before a commit the worker holds its locks."""
AFTER = frozenset({"committed", "stored", "deleted"})
"""The same effects once they have happened: the worker holds no lock."""
STORED = frozenset({"stored"})
REQUESTS = frozenset({"request"})


def kill() -> None:
    raise Killed


class Places(Effects):
    """Acts at each place of the given kinds, once: what a worker repeats after it was killed passes there.

    A place is the progress at the start of an attempt, and what the attempt has done until then.
    """

    def __init__(self, kinds: frozenset[str], act: Callable[[], None] = kill) -> None:
        super().__init__()
        self.num_acts = 0
        self._kinds, self._act = kinds, act
        self._known: set[tuple[object, ...]] = set()
        self._path: list[object] = []
        self._written: list[str] = []

    def start(self, progress: object) -> None:
        """Start an attempt."""
        self._path = [progress]

    def note(self, statement: str) -> None:
        """Record a statement of the open transaction."""
        if not statement.lstrip().startswith("SELECT"):
            self._written.append(" ".join(statement.split()[:3]))

    def before(self, what: str) -> None:
        self._path += [what, *self._written]
        self._written = []
        place = tuple(self._path)
        if what in self._kinds and place not in self._known:
            self._known.add(place)
            self.num_acts += 1
            self._act()


class RequestPlaces(Places):
    """Acts at each request to the store, also where commits alone tell it from one of an earlier attempt."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__(REQUESTS, act)
        self._progress: object = None
        self._commits: set[tuple[str, ...]] = set()

    def start(self, progress: object) -> None:
        if progress != self._progress:
            self._progress = progress
            self._commits.clear()
        super().start((progress, frozenset(self._commits)))

    def before(self, what: str) -> None:
        if what == "commit":
            self._commits.add(tuple(self._written))
        super().before(what)


class Moments(Effects):
    """Acts at the effect of the given kinds that has this number; others are not counted."""

    def __init__(self, kinds: frozenset[str], at: int | None = None, act: Callable[[], None] = kill) -> None:
        super().__init__(at, act)
        self._kinds = kinds

    @property
    def has_acted(self) -> bool:
        return isinstance(self._at, int) and len(self.seen) >= self._at

    def before(self, what: str) -> None:
        if what in self._kinds:
            super().before(what)


class Always(Effects):
    """Acts at each effect of the given kinds."""

    def __init__(self, kinds: frozenset[str], act: Callable[[], None]) -> None:
        super().__init__()
        self._kinds, self._act = kinds, act

    def before(self, what: str) -> None:
        if what in self._kinds:
            self._act()


class WatchedSessions(WatchedMaker):
    """Sessions whose commits are effects if they write; places are told apart by what they write."""

    def __call__(self) -> Session:
        return self._inner()

    @contextmanager
    def begin(self) -> Iterator[Session]:
        with super().begin() as session:
            if isinstance(self._effects, Places):
                _listen(session, self._effects)
            yield session


def _listen(session: Session, places: Places) -> None:
    def note(_: object, __: object, statement: str, *___: Any) -> None:
        places.note(statement)

    event.listen(session.connection(), "before_cursor_execute", note)


class WatchedStore(Storage):
    """A store whose requests, written objects and deletions are effects."""

    def __init__(self, inner: Storage, effects: Effects) -> None:
        self.url, self.access = inner.url, inner.access
        self._reported = self._requesting
        self._effects = effects

    @contextmanager
    def _requesting(self, key: str | None = None) -> Iterator[None]:
        marker = self.access.marker
        try:
            with self.access.reported(key):
                self._effects.before("request")
                yield
        finally:
            self.access.marker = marker

    @contextmanager
    def writer(self, key: str) -> Iterator[ObjectWriter]:
        with super().writer(key) as writer:
            yield writer
            self._effects.before("object")
        self._effects.before("stored")

    def delete(self, key: str) -> None:
        self._effects.before("delete")
        super().delete(key)
        self._effects.before("deleted")


def refuse(_: Storage) -> None:
    """Answer 503 to a request of a `WatchedStore`."""
    raise GenericError("503 Service Unavailable: SlowDown")


def be_away(storage: Storage) -> None:
    """Answer 404 to a request of a `WatchedStore`, and to that for the marker which follows: no bucket, or no route."""
    storage.access.marker = None
    raise FileNotFoundError("404 Not Found")
