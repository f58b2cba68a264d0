"""The longest silence of an engine of late: one long freeze is not a measure of it for ever.

Knows no process and no clock.
"""

from __future__ import annotations

REMEMBERED_SECONDS = 600.0
"""For so long at least, twice that at most, a silence counts: work whose steps are slow has some of them by then."""


class LongestSilence:
    """The longest of those that ended in the present span of `REMEMBERED_SECONDS` and in the one before.

    One thread notes them; `at` may be called from any.
    """

    def __init__(self) -> None:
        self._spans = (0, 0.0, 0.0)  # of which one, the longest in it, the longest in the one before

    def note(self, seconds: float, *, now: float) -> None:
        """Note a silence that has ended `now`; times only grow."""
        span, longest, before = self._spans_at(now)
        self._spans = span, max(longest, seconds), before

    def at(self, now: float) -> float:
        """Return the longest that counts, 0 where there is none."""
        _, longest, before = self._spans_at(now)
        return max(longest, before)

    def _spans_at(self, now: float) -> tuple[int, float, float]:
        last, longest, before = self._spans
        span = int(now // REMEMBERED_SECONDS)
        if span == last:
            return last, longest, before
        return span, 0.0, longest if span == last + 1 else 0.0
