"""Cost and benefit of drafts: step seconds, acceptance rates, and how many drafts pay. Numbers only.

Everything is learned from observed steps.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TypeVar

_Sample = TypeVar("_Sample", float, tuple[float, int])

_WINDOW = 16
"""Steps of a kind that are remembered. The faster half of them counts: other load on the machine only slows steps."""
_FIRST_PLAIN = 3
"""Steps without drafts before the first with them, so that one slow first step is not the baseline."""
_ENOUGH = 3
"""Drafting steps after which a class uses its own measurements."""
_PLAIN_EVERY = 32
"""Longest run of drafting steps without one for comparison; costs at most 3 % of the drafts' benefit."""
_MEMORY = 64.0
"""Drafts after which an acceptance rate has forgotten earlier ones."""
_LEAST_CHANCE = 0.1
"""Less likely drafts are left out even if rows look free: they take blocks, and times are uncertain."""


@dataclass(slots=True)
class _Steps:
    """Recent steps of about the same number of sequences."""

    num_sequences: int = 0
    plain_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    drafted: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    num_since_plain: int = 0

    @property
    def row_seconds(self) -> float:
        """Return the time that a draft added to a step, from the faster half of both kinds of step."""
        seconds, rows = zip(*_faster_half(self.drafted), strict=True)
        return max(0.0, fmean(seconds) - self.typical_plain_seconds) / fmean(rows)

    @property
    def typical_plain_seconds(self) -> float:
        """Return how long a step without drafts takes."""
        return fmean(_faster_half(self.plain_seconds))


class SpeculationCost:
    """Learn how long a decode step takes without drafts, and how much longer with each draft.

    Steps are grouped by the number of sequences, in classes a factor of √2 wide; a class with too few measurements uses
    the nearest one's. Times are in seconds.
    """

    def __init__(self) -> None:
        self._classes: dict[int, _Steps] = {}

    def observe(self, num_sequences: int, *, num_drafts: int, seconds: float) -> None:
        """Add a step of a positive time in which every sequence sampled and none computed its prompt."""
        steps = self._classes.setdefault(_class_of(num_sequences), _Steps())
        steps.num_sequences = num_sequences
        if num_drafts:
            steps.drafted.append((seconds, num_drafts))
            steps.num_since_plain += 1
        else:
            steps.plain_seconds.append(seconds)
            steps.num_since_plain = 0

    def wants_plain(self, num_sequences: int) -> bool:
        """Tell whether the next step should have no drafts, for comparison."""
        steps = self._classes.get(_class_of(num_sequences))
        if steps is None or not steps.plain_seconds:
            num_plain = sum(len(steps.plain_seconds) for steps in self._classes.values())
            return num_plain < _FIRST_PLAIN or (steps is not None and len(steps.drafted) >= _ENOUGH)
        return len(steps.plain_seconds) < _FIRST_PLAIN or steps.num_since_plain >= _PLAIN_EVERY

    def forget_drafts(self) -> None:
        """Forget the cost of drafts, to measure it again."""
        for steps in self._classes.values():
            steps.drafted.clear()

    def row_seconds(self, num_sequences: int) -> float:
        """Return the cost of one more draft, 0 before it was measured."""
        for enough in (_ENOUGH, 1):
            known = [
                key for key, steps in self._classes.items() if steps.plain_seconds and len(steps.drafted) >= enough
            ]
            if known:
                return self._classes[_nearest(known, num_sequences)].row_seconds
        return 0.0

    def plain_seconds(self, num_sequences: int) -> float | None:
        """Return how long a step without drafts takes; None before one was observed.

        From another class it is extrapolated as if each further sequence cost as much as a draft.
        """
        known = [key for key, steps in self._classes.items() if steps.plain_seconds]
        if not known:
            return None
        key = _nearest(known, num_sequences)
        steps = self._classes[key]
        seconds = steps.typical_plain_seconds
        if key == _class_of(num_sequences):
            return seconds
        more = (num_sequences - steps.num_sequences) * self.row_seconds(num_sequences)
        return max(seconds + more, seconds * min(1.0, num_sequences / steps.num_sequences))


class Acceptance:
    """Learn how often drafts are accepted: the first by the length of its match, later ones by their depth.

    A later draft's rate assumes that those before it were accepted; depths are grouped as 2, 3–4, 5–8 and so on.
    """

    def __init__(self, *, max_match: int, max_drafts: int) -> None:
        self._first = [_Rate(0.5) for _ in range(max_match + 1)]
        self._later = [_Rate(0.8) for _ in range((max_drafts - 1).bit_length() + 1)]
        self._max_drafts = max_drafts

    def first_chance(self, match_length: int) -> float:
        """Return the chance of the first draft after a match of that length."""
        return self._first[match_length].value

    def survival(self) -> list[float]:
        """Return for depth 1, 2, … the chance that a draft is accepted if the first one is; it never rises."""
        chances = [1.0]
        for depth in range(2, self._max_drafts + 1):
            chances.append(chances[-1] * self._later[(depth - 1).bit_length()].value)
        return chances

    def observe(self, match_length: int, *, num_drafts: int, num_accepted: int, has_ended: bool) -> None:
        """Add the outcome of one sequence's drafts; one that ended the sequence refused none of them."""
        num_judged = num_accepted if has_ended else min(num_drafts, num_accepted + 1)
        for depth in range(1, num_judged + 1):
            rate = self._first[match_length] if depth == 1 else self._later[(depth - 1).bit_length()]
            rate.observe(is_hit=depth <= num_accepted)


class _Rate:
    """A share of hits: first a mean in which the initial value counts as four trials, later a moving mean."""

    __slots__ = ("_num", "value")

    def __init__(self, value: float) -> None:
        self.value = value
        self._num = 4.0

    def observe(self, *, is_hit: bool) -> None:
        self._num = min(self._num + 1.0, _MEMORY)
        self.value += (is_hit - self.value) / self._num


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence that could have up to `limit` drafts, the first accepted with probability `chance`."""

    chance: float
    limit: int


def choose_counts(
    candidates: Sequence[Candidate],
    survival: Sequence[float],
    *,
    num_sequences: int,
    plain_seconds: float,
    row_seconds: float,
) -> list[int]:
    """Return how many drafts each candidate gets, to maximize the step's tokens per second.

    A draft that is accepted with probability q yields q tokens for `row_seconds`; it pays while that is more tokens per
    second than the whole step makes. The rate rises with the drafts chosen by it, so this is iterated to its fixed
    point (Dinkelbach 1967), in a few rounds.
    """
    falling = [-chance for chance in survival]
    totals = [0.0]
    for chance in survival:
        totals.append(totals[-1] + chance)
    counts = [0] * len(candidates)
    seconds_per_token = plain_seconds / num_sequences
    for _ in range(4):
        least = max(_LEAST_CHANCE, row_seconds / seconds_per_token)
        chosen = [bisect_right(falling, -least / c.chance, hi=min(c.limit, len(falling))) for c in candidates]
        if chosen == counts:
            break
        counts = chosen
        accepted = sum(c.chance * totals[count] for c, count in zip(candidates, counts, strict=True))
        seconds_per_token = (plain_seconds + row_seconds * sum(counts)) / (num_sequences + accepted)
    return counts


def _faster_half(samples: Iterable[_Sample]) -> list[_Sample]:
    ordered = sorted(samples)
    return ordered[: (len(ordered) + 1) // 2]


def _class_of(num_sequences: int) -> int:
    return round(2.0 * math.log2(num_sequences))


def _nearest(keys: Sequence[int], num_sequences: int) -> int:
    return min(keys, key=lambda key: abs(key - _class_of(num_sequences)))
