"""Room for the log-probabilities of prompts, which lines hold from their start until their results are written.

So many at once in one worker, whosever they are: each takes up to 600 bytes of memory on its way from the engine to a
stored answer. Knows lines by their numbers alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from jobs.lines.body_checks import MAX_SCORES


class ScoreRoom:
    """What the chunks of one worker share. Safe to use from several threads.

    Who was refused has room before those who came later: a line that needs nearly all of it has its turn, too.
    """

    def __init__(self, max_scores: int = MAX_SCORES) -> None:
        self._max_scores = max_scores
        self._num_scores = 0
        self._waiting: dict[tuple[object, int], int] = {}  # scores wanted, by ticket; the oldest first
        self._changed = threading.Condition()

    def enter(self, num_scores: int, ticket: tuple[object, int] | None = None) -> bool:
        """Hold room for so many, or return False; who is alone always has it.

        `ticket` is (owner, line number): with one, who is refused keeps a place until it has room or its owner gives
        up. What older ones wait for is kept free.
        """
        with self._changed:
            if not self._has_room(num_scores, ticket):
                if ticket is not None:
                    self._waiting.setdefault(ticket, num_scores)
                return False
            if ticket is not None:
                self._waiting.pop(ticket, None)
            self._num_scores += num_scores
            return True

    def _has_room(self, num_scores: int, ticket: tuple[object, int] | None) -> bool:
        num_taken = self._num_scores
        for older, num_wanted in self._waiting.items():
            if older == ticket:
                break
            num_taken += num_wanted
            if num_taken + num_scores > self._max_scores:
                return False
        return not num_taken or num_taken + num_scores <= self._max_scores

    def stop_waiting(self, owner: object) -> None:
        """Let those who came later pass what an owner waits for."""
        with self._changed:
            for ticket in [ticket for ticket in self._waiting if ticket[0] is owner]:
                del self._waiting[ticket]
            self._changed.notify_all()

    def leave(self, num_scores: int) -> None:
        """Give room back."""
        with self._changed:
            self._num_scores -= num_scores
            self._changed.notify_all()

    def wait(self, timeout_seconds: float) -> None:
        """Wait until somebody gives room back."""
        with self._changed:
            self._changed.wait(timeout_seconds)


class ChunkScores:
    """What the lines of one chunk hold of it. `bool()` tells whether one holds any."""

    def __init__(self, room: ScoreRoom) -> None:
        self._room = room
        self._held: dict[int, int] = {}  # by line_no

    def __bool__(self) -> bool:
        return bool(self._held)

    def enter(self, line_no: int, num_scores: int) -> bool:
        """Let a line hold room for so many until it leaves; False where there is none. None are always given."""
        if num_scores and line_no not in self._held:
            if not self._room.enter(num_scores, (self, line_no)):
                return False
            self._held[line_no] = num_scores
        return True

    def leave(self, line_nos: Iterable[int]) -> None:
        """Give back what lines hold."""
        for line_no in line_nos:
            num_scores = self._held.pop(line_no, 0)
            if num_scores:
                self._room.leave(num_scores)

    def leave_all(self) -> None:
        """Give back everything, and wait for nothing more: the chunk is over."""
        self.leave(list(self._held))
        self._room.stop_waiting(self)

    def holds(self, line_no: int) -> bool:
        return line_no in self._held

    def wait(self, timeout_seconds: float) -> None:
        """Wait until somebody gives room back."""
        self._room.wait(timeout_seconds)
