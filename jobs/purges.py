"""What is ended now and then because it is kept no longer: a step each, as the queue and the features declare them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

LOOK_AGAIN = timedelta(hours=1)
SWEEP_AGAIN = timedelta(hours=6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge:
    """One step; a control worker takes it every minute unless it is a chore."""

    what: str
    """What is ended, for the log."""
    step: Callable[[], int]
    """Ends things and returns how many."""
    chore: str | None = None
    """Its name in `jobs.chores`, for a step that lists the whole store or reads all that is kept: one worker takes it
    for all."""
    again: timedelta = LOOK_AGAIN
    """From one turn of a chore to the next."""
