"""States of runs and their moves; what a run is for, and what becomes of runs that overlap or are late."""

from __future__ import annotations

from enum import StrEnum

from jobs.states import State


class RunState(State):
    """States of a pipeline's run as the wire shows them."""  # `features.pipelines.lifecycle` alone writes them

    QUEUED = "queued"  # waits until no other run of its pipeline is under way
    RUNNING = "running"
    SUCCEEDED = "succeeded"  # every step is done, and what they put out is published
    FAILED = "failed"  # `reason` says why; resumed, it goes on where it stopped
    SKIPPED = "skipped"  # `reason` says why; it never began
    CANCELLING = "cancelling"  # its batch is being cancelled
    CANCELLED = "cancelled"

    @property
    def following(self) -> frozenset[RunState]:
        return RUN_MOVES[self]


class RunKind(StrEnum):
    """Who wanted a run."""

    CRON = "cron"  # its schedule
    MANUAL = "manual"  # somebody, now
    BACKFILL = "backfill"  # somebody, for a time that is over


class Overlap(StrEnum):
    """What becomes of a schedule's run that is due while an earlier one of it has not ended."""

    SKIP = "skip"
    QUEUE_ONE = "queue_one"  # it waits, unless another does
    QUEUE_ALL = "queue_all"
    CANCEL_RUNNING = "cancel_running"  # in its favour


class CatchUp(StrEnum):
    """What becomes of runs that were due while nobody looked at the schedule."""

    NONE = "none"
    LATEST = "latest"  # the last of them is made up for
    ALL = "all"


_R = RunState

RUN_MOVES: dict[RunState, frozenset[RunState]] = {
    _R.QUEUED: frozenset({_R.RUNNING, _R.CANCELLED}),
    _R.RUNNING: frozenset({_R.SUCCEEDED, _R.FAILED, _R.CANCELLING}),
    _R.CANCELLING: frozenset({_R.CANCELLED}),
    _R.SUCCEEDED: frozenset(),
    _R.FAILED: frozenset({_R.QUEUED}),
    _R.SKIPPED: frozenset(),
    _R.CANCELLED: frozenset(),
}

TERMINAL_RUN_STATES = frozenset({_R.SUCCEEDED, _R.FAILED, _R.SKIPPED, _R.CANCELLED})

OPEN_RUN_STATES = tuple(state for state in RunState if state not in TERMINAL_RUN_STATES)
