"""States of flows. A kind has some of them, as its objects show them, with a table of moves of its own."""

from __future__ import annotations

from enum import StrEnum

from jobs.states import CANCELLING


class FlowState(StrEnum):
    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    RUNNING = "running"  # as in_progress, of runs
    CANCELLING = CANCELLING
    COMPLETED = "completed"
    SUCCEEDED = "succeeded"  # as completed, of runs
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


CLAIMABLE_STATES = (FlowState.IN_PROGRESS, FlowState.RUNNING, FlowState.CANCELLING)
"""A control worker advances a flow in these states."""
