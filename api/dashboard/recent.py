"""What looks at open pages have found lately: pages that show the same ask for it once, and no oftener than it changes.

For one thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Found(Generic[T]):
    value: T
    until: float


class Recent:
    """Values by key, each for some seconds. `now` is a clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._found: dict[Hashable, _Found[object]] = {}

    def get(self, key: Hashable, read: Callable[[], T], *, seconds: float) -> T:
        """Return what is known of a key; read it where nothing is, or for longer than `seconds`."""
        (value,) = self.get_all([key], lambda _: [read()], seconds=seconds)
        return value

    def get_all(self, keys: Sequence[K], read: Callable[[Sequence[K]], Sequence[T]], *, seconds: float) -> list[T]:
        """Return the same of each key; those of which too little is known are read together."""
        now = self._now()
        unknown = [key for key in dict.fromkeys(keys) if key not in self._found or now >= self._found[key].until]
        if unknown:
            values = zip(unknown, read(unknown), strict=True)
            self._found |= {key: _Found(value, now + seconds) for key, value in values}
        return [self._found[key].value for key in keys]  # type: ignore[misc]  # a key is of one kind of value

    def clear(self) -> None:
        self._found = {}

    def forget(self) -> None:
        """Drop what is too old to be returned."""
        now = self._now()
        self._found = {key: found for key, found in self._found.items() if found.until > now}
