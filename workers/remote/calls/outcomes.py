"""What became of a line's requests to a server: those so far, and their end. Values without a clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from workers.remote.verdicts import Answered, Away, Busy, Counts, Denied, Refused, Spoilt, Unloaded, Unpaid

MAX_BUSY = 10
"""How often a server that answers others may say to one line that it is busy, before that counts as an attempt."""

End = Answered | Refused | Spoilt | Away | Unpaid | Unloaded

V = TypeVar("V", bound=Answered | Refused | Spoilt | Away | Busy | Denied | Unpaid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a call: an answer, a refusal, `Spoilt` for a line that fails, another for one to be given back."""

    verdict: End
    wasted: tuple[Counts, ...] = ()
    """What the server counted for answers that were thrown away."""
    num_uncounted: int = 0
    """Answers that were thrown away without a count that can be true."""
    excesses: tuple[Counts, ...] = ()
    """The impossible counts of some of these."""


@dataclass(slots=True, kw_only=True)
class Tries:
    """The requests for one line so far."""

    num_good_before: int
    """Answers of the server to any line before the first of them."""
    num_attempts: int = 0
    num_losses: int = 0
    _num_busy: int = 0
    _thrown_away: list[Spoilt] = field(default_factory=list)

    @property
    def num_paid(self) -> int:
        """Return how many answers were thrown away that may have to be paid for."""
        return len(self._thrown_away)

    def noted(self, verdict: V, *, num_good: int) -> V | Spoilt:
        """Note a verdict and return it; one of many by which the server is busy for this line alone counts as none."""
        if isinstance(verdict, Spoilt):
            self._thrown_away.append(verdict)
        if not isinstance(verdict, Busy):
            return verdict
        if verdict.may_have_computed:
            self._thrown_away.append(Spoilt(reason=verdict.reason))
        self._num_busy += 1
        if self._num_busy < MAX_BUSY or num_good == self.num_good_before:
            return verdict
        self._num_busy = 0
        return Spoilt(reason=verdict.reason)

    def outcome(self, end: End) -> Outcome:
        counted = tuple(one.paid for one in self._thrown_away if one.paid is not None)
        return Outcome(
            verdict=end,
            wasted=counted,
            num_uncounted=len(self._thrown_away) - len(counted),
            excesses=tuple(one.excess for one in self._thrown_away if one.excess is not None),
        )
