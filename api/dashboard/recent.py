"""What looks at open pages have found lately: pages that show the same ask for it once, and no oftener than it changes.

For one thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

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
        known = self._found.get(key)
        if known is None or self._now() >= known.until:
            known = self._found[key] = _Found(read(), self._now() + seconds)
        value: T = known.value  # type: ignore[assignment]  # a key is of one kind of value
        return value

    def forget(self) -> None:
        """Drop what is too old to be returned."""
        now = self._now()
        self._found = {key: found for key, found in self._found.items() if found.until > now}
