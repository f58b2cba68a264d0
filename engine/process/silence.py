"""The longest recent silence of an engine; one long freeze is forgotten after a while."""

from __future__ import annotations

REMEMBERED_SECONDS = 600.0
"""A silence counts for at least this long and at most twice that; work with slow steps has several by then."""


class LongestSilence:
    """The longest silence that ended in the present or the previous span of `REMEMBERED_SECONDS`.

    One thread calls `note`; `at` may be called from any.
    """

    def __init__(self) -> None:
        self._spans = (0, 0.0, 0.0)  # index of the span, the longest in it, the longest in the one before

    def note(self, seconds: float, *, now: float) -> None:
        """Record a silence that ended `now`; times must not decrease."""
        span, longest, before = self._spans_at(now)
        self._spans = span, max(longest, seconds), before

    def at(self, now: float) -> float:
        """Return the longest silence that counts, 0 if there is none."""
        _, longest, before = self._spans_at(now)
        return max(longest, before)

    def _spans_at(self, now: float) -> tuple[int, float, float]:
        last, longest, before = self._spans
        span = int(now // REMEMBERED_SECONDS)
        if span == last:
            return last, longest, before
        return span, 0.0, longest if span == last + 1 else 0.0
