"""States of indexes and of fills, and their moves."""

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


class FillState(State):
    """States of what fills the lines of a batch."""  # `features.retrieval.fills` alone writes them

    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"  # its batch has ended, and the lookups that it waits for are being cancelled
    COMPLETED = "completed"
    FAILED = "failed"  # its batch fails, or is validated again as its input is missing
    CANCELLED = "cancelled"

    @property
    def following(self) -> frozenset[FillState]:
        return FILL_MOVES[self]


_F = FillState

FILL_MOVES: dict[FillState, frozenset[FillState]] = {
    _F.IN_PROGRESS: frozenset({_F.COMPLETED, _F.FAILED, _F.CANCELLING}),
    _F.CANCELLING: frozenset({_F.CANCELLED}),
    _F.COMPLETED: frozenset(),
    _F.FAILED: frozenset({_F.IN_PROGRESS}),  # the input is there again
    _F.CANCELLED: frozenset(),
}

TERMINAL_FILL_STATES = (FillState.COMPLETED, FillState.FAILED, FillState.CANCELLED)
