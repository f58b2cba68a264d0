"""States of extractions and their moves."""

from __future__ import annotations

from jobs.states import State


class ExtractionState(State):
    """States as the wire shows them."""  # `features.documents.lifecycle` alone writes them

    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"  # the batch that it waits for is being cancelled
    COMPLETED = "completed"  # every document has its record, a failed one, too
    FAILED = "failed"  # `reason` says why
    CANCELLED = "cancelled"

    @property
    def following(self) -> frozenset[ExtractionState]:
        return EXTRACTION_MOVES[self]


_E = ExtractionState

EXTRACTION_MOVES: dict[ExtractionState, frozenset[ExtractionState]] = {
    _E.IN_PROGRESS: frozenset({_E.COMPLETED, _E.FAILED, _E.CANCELLING}),
    _E.CANCELLING: frozenset({_E.CANCELLED}),
    _E.COMPLETED: frozenset(),
    _E.FAILED: frozenset(),
    _E.CANCELLED: frozenset(),
}

TERMINAL_EXTRACTION_STATES = frozenset(state for state in ExtractionState if not state.following)
