"""The line of sequences that wait for a seat, best first. Knows only their ordering key; no torch."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any

from engine.request import Sequence

_Key = tuple[int, bool, float, int, int]


class WaitingLine:
    """Keep waiting sequences sorted by `waiting_key`. The best one is last in the list, so taking it is O(1)."""

    def __init__(self) -> None:
        self._entries: list[tuple[Any, Sequence]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for _, sequence in reversed(self._entries))

    def push(self, sequence: Sequence) -> None:
        """Put a sequence where its key belongs."""
        insort(self._entries, (_reversed(sequence.waiting_key), sequence), key=lambda entry: entry[0])

    def peek(self) -> Sequence:
        """Return the best sequence; the line must not be empty."""
        return self._entries[-1][1]

    def pop(self) -> Sequence:
        """Take the best sequence out; the line must not be empty."""
        return self._entries.pop()[1]

    def remove(self, sequence: Sequence) -> None:
        """Take this sequence out; it must be in the line."""
        place = bisect_left(self._entries, _reversed(sequence.waiting_key), key=lambda entry: entry[0])
        assert self._entries[place][1] is sequence
        del self._entries[place]


def _reversed(key: _Key) -> tuple[int, bool, float, int, int]:
    priority, is_fresh, deadline, arrival, index = key
    return (-priority, not is_fresh, -deadline, -arrival, -index)
