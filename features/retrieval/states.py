"""States of indexes and their moves."""

from __future__ import annotations

from jobs.states import State


class IndexState(State):
    """States as the wire shows them."""  # `features.retrieval.lifecycle` alone writes them

    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"  # it is deleted, and the batch that it waits for is being cancelled
    COMPLETED = "completed"  # it can be searched; documents that could not be read are not in it
    FAILED = "failed"  # `reason` says why
    CANCELLED = "cancelled"

    @property
    def following(self) -> frozenset[IndexState]:
        return INDEX_MOVES[self]


_I = IndexState

INDEX_MOVES: dict[IndexState, frozenset[IndexState]] = {
    _I.IN_PROGRESS: frozenset({_I.COMPLETED, _I.FAILED, _I.CANCELLING}),
    _I.CANCELLING: frozenset({_I.CANCELLED}),
    _I.COMPLETED: frozenset(),
    _I.FAILED: frozenset(),
    _I.CANCELLED: frozenset(),
}

TERMINAL_INDEX_STATES = frozenset(state for state in IndexState if not state.following)
