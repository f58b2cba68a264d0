"""Purges: periodic steps that end what has expired, declared by the queue and the features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

LOOK_AGAIN = timedelta(hours=1)
SWEEP_AGAIN = timedelta(hours=6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge:
    """One step; a control worker runs it every minute unless it is a chore."""

    what: str
    """What is ended, for the log."""
    step: Callable[[], int]
    """Does the step and returns how many things were ended."""
    chore: str | None = None
    """Its name in `jobs.chores`, for a step that lists the whole store or reads all stored data: one worker runs it for
    all."""
    again: timedelta = LOOK_AGAIN
    """Interval between runs of a chore."""
