"""A cache of values that open pages have in common; each is read once per interval. For one thread at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    value: T
    until: float


class Recent:
    """Values by key, each cached for some seconds. `now` is a clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._entries: dict[Hashable, _Entry[object]] = {}

    def get(self, key: Hashable, read: Callable[[], T], *, seconds: float) -> T:
        """Return the cached value of a key; read it if there is none or it is older than its `seconds`."""
        (value,) = self.get_all([key], lambda _: [read()], seconds=seconds)
        return value

    def get_all(self, keys: Sequence[K], read: Callable[[Sequence[K]], Sequence[T]], *, seconds: float) -> list[T]:
        """Return the value of each key; missing ones are read together."""
        now = self._now()
        unknown = [key for key in dict.fromkeys(keys) if key not in self._entries or now >= self._entries[key].until]
        if unknown:
            values = zip(unknown, read(unknown), strict=True)
            self._entries |= {key: _Entry(value, now + seconds) for key, value in values}
        return [self._entries[key].value for key in keys]  # type: ignore[misc]  # a key has one type of value

    def clear(self) -> None:
        self._entries = {}

    def forget(self) -> None:
        """Drop expired values."""
        now = self._now()
        self._entries = {key: entry for key, entry in self._entries.items() if entry.until > now}
