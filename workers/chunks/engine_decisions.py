"""Counts of the engine's decisions about a chunk's lines, for their batch's owner to read; counted as lines end.

They are recorded with some of the flushes, not with each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping

from jobs.decisions import Kind
from workers.line_run import LineRun

_EVERY_SECONDS = 5.0
"""Minimum interval between two flushes of a chunk that record decisions, except the last flush."""


class EngineDecisions:
    """The counts of one chunk; an early end of the chunk may lose the latest ones."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._noted_at = -math.inf
        self._counts: Counter[Kind] = Counter()

    def count(self, run: LineRun) -> None:
        """Count the decisions about a line that has ended."""
        for output in (prompt_run.output for prompt_run in run.prompt_runs):
            self._counts[Kind.PREEMPTED] += output.num_preemptions
            self._counts[Kind.SWAPPED] += output.num_swaps
            self._counts[Kind.PREFIX_FOUND] += output.num_cached_tokens

    def pop_due(self, *, is_last: bool) -> Mapping[Kind, int]:
        """Remove and return the counts that the next flush is to record; none if some were recorded a moment ago."""
        now = self._monotonic()
        if not is_last and now - self._noted_at < _EVERY_SECONDS:
            return {}
        self._noted_at = now
        due, self._counts = +self._counts, Counter()
        return due
