"""The queue of sequences that wait for a seat: the policy's best one first, and from time to time the oldest."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any, Protocol

from engine.scheduling.request import Sequence

Key = tuple[Any, ...]
"""Sort key of sequences, smallest first. Keys of one queue must be comparable with each other."""


class KeyedQueue:
    """Sequences by a fixed key, smallest first. Push and discard cost O(log n).

    A discarded entry stays in the heap, no longer live by its serial, until it reaches the top.
    """

    __slots__ = ("_heap", "_next_serial", "_serials")

    def __init__(self) -> None:
        self._heap: list[tuple[Key, int, Sequence]] = []
        self._serials: dict[Sequence, int] = {}
        self._next_serial = 0

    def __len__(self) -> int:
        return len(self._serials)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._serials

    def __iter__(self) -> Iterator[Sequence]:
        """Yield the sequences in no particular order."""
        return iter(self._serials)

    def push(self, key: Key, sequence: Sequence) -> None:
        """Insert a sequence at its key; it must not be in the queue."""
        assert sequence not in self._serials, "the sequence is already in the queue"
        self._next_serial += 1
        self._serials[sequence] = self._next_serial
        heappush(self._heap, (key, self._next_serial, sequence))

    def peek(self) -> Sequence:
        """Return the sequence with the smallest key; the queue must not be empty."""
        while True:
            _, serial, sequence = self._heap[0]
            if self._serials.get(sequence) == serial:
                return sequence
            heappop(self._heap)

    def discard(self, sequence: Sequence) -> None:
        """Remove this sequence; it must be in the queue."""
        del self._serials[sequence]
        if not self._serials:
            self._heap.clear()


class Order(Protocol):
    """The part of a policy that the queue uses."""

    def push(self, sequence: Sequence) -> None:
        """Add a sequence that waits."""

    def peek(self) -> Sequence:
        """Return the sequence that should start next; at least one waits."""

    def discard(self, sequence: Sequence) -> None:
        """Remove a waiting sequence."""


class WaitingQueue:
    """Every waiting sequence, in the policy's order, with a turn for the oldest.

    After `max_passed_over` sequences in a row have started before the oldest one, the oldest is next whatever the
    policy, and it is protected: nothing preempts it while an unprotected sequence runs. So a request starts for good
    after at most `max_passed_over + 1` starts for each unfinished request older than it and one more for itself.
    """

    def __init__(self, policy: Order, *, max_passed_over: int) -> None:
        self._policy = policy
        self._max_passed_over = max_passed_over
        self._num_passed_over = 0
        self._by_age = KeyedQueue()

    def __len__(self) -> int:
        return len(self._by_age)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._by_age)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._by_age

    @property
    def is_turn_of_oldest(self) -> bool:
        """Tell whether the oldest is next because of its age."""
        return self._num_passed_over >= self._max_passed_over

    def push(self, sequence: Sequence) -> None:
        """Add a waiting sequence."""
        self._policy.push(sequence)
        self._by_age.push((sequence.request.arrival, sequence.index), sequence)

    def peek(self) -> Sequence:
        """Return the sequence that starts next; the queue must not be empty."""
        return self._by_age.peek() if self.is_turn_of_oldest else self._policy.peek()

    def pop(self) -> Sequence:
        """Take the sequence that `peek` returns out of the queue, to start."""
        sequence = self.peek()
        if self.is_turn_of_oldest:
            sequence.is_protected = True
        if sequence is self._by_age.peek():
            self._num_passed_over = 0
        else:
            self._num_passed_over += 1
        self.remove(sequence)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Remove this sequence; it must be in the queue."""
        self._policy.discard(sequence)
        self._by_age.discard(sequence)
