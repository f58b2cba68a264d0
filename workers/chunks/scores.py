"""Room for the log-probabilities of prompts, held by lines from their start until their results are written.

A limit per worker, for all tenants together: each takes up to 600 bytes of memory on its way from the engine to a
stored answer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from jobs.lines.body_checks import MAX_SCORES


class ScoreRoom:
    """The room that the chunks of one worker share. Safe to use from several threads.

    A refused line gets room before later ones, so that a line that needs nearly all of it has its turn.
    """

    def __init__(self, max_scores: int = MAX_SCORES) -> None:
        self._max_scores = max_scores
        self._num_scores = 0
        self._waiting: dict[tuple[object, int], int] = {}  # scores needed, by ticket; the oldest first
        self._changed = threading.Condition()

    def enter(self, num_scores: int, ticket: tuple[object, int] | None = None) -> bool:
        """Hold room for `num_scores`, or return False; a line that is alone always gets room.

        `ticket` is (owner, line number): a refused line with a ticket keeps its place until it has room or its owner
        gives up. Room that older tickets wait for is kept free.
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
        for older, num_needed in self._waiting.items():
            if older == ticket:
                break
            num_taken += num_needed
            if num_taken + num_scores > self._max_scores:
                return False
        return not num_taken or num_taken + num_scores <= self._max_scores

    def stop_waiting(self, owner: object) -> None:
        """Drop an owner's tickets, so that later ones pass them."""
        with self._changed:
            for ticket in [ticket for ticket in self._waiting if ticket[0] is owner]:
                del self._waiting[ticket]
            self._changed.notify_all()

    def leave(self, num_scores: int) -> None:
        """Release room."""
        with self._changed:
            self._num_scores -= num_scores
            self._changed.notify_all()

    def wait(self, timeout_seconds: float) -> None:
        """Wait until somebody gives room back."""
        with self._changed:
            self._changed.wait(timeout_seconds)


class ChunkScores:
    """The room that the lines of one chunk hold; `bool()` tells whether there is any."""

    def __init__(self, room: ScoreRoom) -> None:
        self._room = room
        self._held: dict[int, int] = {}  # by line_no

    def __bool__(self) -> bool:
        return bool(self._held)

    def enter(self, line_no: int, num_scores: int) -> bool:
        """Hold room for a line until it leaves; False if there is none. A line that needs none always succeeds."""
        if num_scores and line_no not in self._held:
            if not self._room.enter(num_scores, (self, line_no)):
                return False
            self._held[line_no] = num_scores
        return True

    def leave(self, line_nos: Iterable[int]) -> None:
        """Release the room of lines."""
        for line_no in line_nos:
            num_scores = self._held.pop(line_no, 0)
            if num_scores:
                self._room.leave(num_scores)

    def leave_all(self) -> None:
        """Release everything and drop all tickets: the chunk is over."""
        self.leave(list(self._held))
        self._room.stop_waiting(self)

    def holds(self, line_no: int) -> bool:
        return line_no in self._held

    def wait(self, timeout_seconds: float) -> None:
        """Wait until somebody gives room back."""
        self._room.wait(timeout_seconds)
