"""Outcome of a batch's lines in words: the status `completed` also covers batches whose every line failed.

The API has OpenAI's statuses; pages and the command line show these words instead.
"""

from __future__ import annotations

from enum import StrEnum

from jobs.states import BatchState


class Outcome(StrEnum):
    """Outcome of a completed batch."""

    COMPLETED = "completed"
    SOME_FAILED = "completed with failures"
    MOSTLY_FAILED = "mostly failed"
    """More than half of the lines."""
    ALL_FAILED = "all lines failed"


def standing(status: str, *, completed: int, failed: int) -> str:
    """Return a batch's status; for a completed one the outcome by its counts of lines."""
    return outcome(completed=completed, failed=failed) if status == BatchState.COMPLETED else status


def outcome(*, completed: int, failed: int) -> Outcome:
    if not failed:
        return Outcome.COMPLETED
    if not completed:
        return Outcome.ALL_FAILED
    return Outcome.MOSTLY_FAILED if failed > completed else Outcome.SOME_FAILED
