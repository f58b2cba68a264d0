"""How many requests a server is asked at once: additive increase, multiplicative decrease. Pure; time is an argument.

More seats while answers come quickly and all seats are taken; fewer when the server says that it is busy, or when
answers take many times as long as they did.
"""

from __future__ import annotations

CUT = 0.7
"""The limit after the server was busy, as a share of the one before."""
SLOW_CUT = 0.9
SLOW_RATIO = 8.0
"""How many times longer than the quickest answer, for its tokens, an answer may take before the limit falls."""
_TOKENS_OF_A_REQUEST = 8
"""A request's fixed cost, in tokens of an answer."""
_PROMPT_TOKENS_A_TOKEN = 16
"""Tokens of a prompt that cost as much as one of an answer."""


class Pace:
    """The current limit, between 1 and `most`."""

    def __init__(self, *, start: int, most: int) -> None:
        self._limit = float(min(start, most))
        self._floor = max(1.0, self._limit / 4)  # slowness alone does not lower it further
        self._most = most
        self._cut_at = 0.0
        self._quickest: float | None = None  # seconds for the work of one token

    @property
    def limit(self) -> int:
        return int(self._limit)

    def note_answer(
        self, *, began_at: float, now: float, prompt_tokens: int, completion_tokens: int, is_full: bool
    ) -> None:
        """Note a good answer; `is_full`: every seat was taken, so that more might be of use."""
        work = _TOKENS_OF_A_REQUEST + completion_tokens + prompt_tokens / _PROMPT_TOKENS_A_TOKEN
        seconds = (now - began_at) / work
        quickest = self._quickest = seconds if self._quickest is None else min(self._quickest, seconds)
        if seconds > SLOW_RATIO * quickest:
            self._cut(SLOW_CUT, began_at=began_at, now=now, floor=self._floor)
        elif is_full:
            self._limit = min(float(self._most), self._limit + 1 / self._limit)

    def note_busy(self, *, began_at: float, now: float) -> None:
        """Note that the server had no room for a request, or did not answer it in time."""
        self._cut(CUT, began_at=began_at, now=now, floor=1.0)

    def _cut(self, share: float, *, began_at: float, now: float, floor: float) -> None:
        """Lower the limit, once for all requests that were under way when it was lowered last."""
        if began_at >= self._cut_at:
            self._limit = max(min(floor, self._limit), self._limit * share)
            self._cut_at = now
