"""Effects of processes on the database and the store: counted, so that a process can be killed between any two."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from jobs.settings import MIB
from jobs.storage import ObjectWriter, Storage

_HAS_WRITTEN = "SELECT pg_current_xact_id_if_assigned() IS NOT NULL"


class Killed(BaseException):
    """The process dies here: no `except` or `finally` of ours may repair anything in the database."""


class Effects:
    """Counts effects, and acts before one of them."""

    def __init__(self, at: int | str | None = None, do: Callable[[], None] | None = None) -> None:
        """`at` is a number, or the name of an effect at its first time."""
        self.seen: list[str] = []
        self._at, self._do = at, do

    def begin(self, unit: str) -> None:
        """Note that a unit of work begins; `unit` is the same if it is tried again."""

    def before(self, what: str) -> None:
        is_first = what not in self.seen
        self.seen.append(what)
        if self._at == len(self.seen) or (self._at == what and is_first):
            if self._do is None:
                raise Killed(what)
            self._do()


class EffectsOfUnits(Effects):
    """Acts in every unit of work: before those of its effects that have given numbers, once before each."""

    def __init__(
        self, *kinds: str, numbers: Container[int] = range(1, 1000), do: Callable[[], None] | None = None
    ) -> None:
        """Only effects of these kinds have numbers, from 1 in each unit."""
        super().__init__()
        self.num_acts = 0
        self._kinds, self._numbers, self._act = kinds, numbers, do or self._kill
        self._unit, self._num_seen = "", 0
        self._acted: set[tuple[str, int]] = set()

    def begin(self, unit: str) -> None:
        self._unit, self._num_seen = unit, 0

    def before(self, what: str) -> None:
        super().before(what)
        if what not in self._kinds:
            return
        self._num_seen += 1
        effect = self._unit, self._num_seen
        if self._num_seen in self._numbers and effect not in self._acted:
            self._acted.add(effect)
            self.num_acts += 1
            self._act()

    def _kill(self) -> None:
        raise Killed(self.seen[-1])


class WatchedMaker:
    """Sessions whose commits are effects if they write."""

    def __init__(self, inner: sessionmaker[Session], effects: Effects) -> None:
        self._inner, self._effects = inner, effects
        self.kw = inner.kw

    @contextmanager
    def begin(self) -> Iterator[Session]:
        with self._inner.begin() as session:
            yield session
            session.flush()
            has_written = _has_written(session)
            if has_written:
                self._effects.before("commit")
        if has_written:
            self._effects.before("committed")


def _has_written(session: Session) -> bool:
    connection: Any = session.connection().connection.driver_connection
    return bool(connection.execute(_HAS_WRITTEN).fetchone()[0])


class WatchedStorage(Storage):
    """The same store; each object that is written is an effect, before it appears."""

    def __init__(self, inner: Storage, effects: Effects) -> None:
        self.__dict__.update(inner.__dict__)
        self._effects = effects

    @contextmanager
    def writer(self, key: str) -> Iterator[ObjectWriter]:
        with super().writer(key) as writer:
            yield writer
            self._effects.before("object")


class WatchedReads(WatchedStorage):
    """Reads are effects, too."""

    def size(self, key: str) -> int:
        self._effects.before("read")
        return super().size(key)

    def read_range(self, key: str, start: int, end: int) -> bytes:
        self._effects.before("read")
        return super().read_range(key, start, end)

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]], *, gap_bytes: int = MIB) -> list[bytes]:
        self._effects.before("read")
        return super().read_ranges(key, ranges, gap_bytes=gap_bytes)
