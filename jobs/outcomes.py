"""What became of a batch's lines, in a word for people: `completed` is also the status of one whose every line failed.

The API has the statuses of OpenAI; pages and the command line show these words in their place.
"""

from __future__ import annotations

from enum import StrEnum

from jobs.states import BatchState


class Outcome(StrEnum):
    """What a completed batch came to."""

    COMPLETED = "completed"
    SOME_FAILED = "completed with failures"
    MOSTLY_FAILED = "mostly failed"
    """More than half of the lines."""
    ALL_FAILED = "all lines failed"


def standing(status: str, *, completed: int, failed: int) -> str:
    """Return a batch's status; of a completed one what it came to, by its counts of lines."""
    return outcome(completed=completed, failed=failed) if status == BatchState.COMPLETED else status


def outcome(*, completed: int, failed: int) -> Outcome:
    if not failed:
        return Outcome.COMPLETED
    if not completed:
        return Outcome.ALL_FAILED
    return Outcome.MOSTLY_FAILED if failed > completed else Outcome.SOME_FAILED
