"""The states of batches, chunks and uploads, and the one table of moves. Nobody assigns a state elsewhere."""

from __future__ import annotations

from enum import StrEnum


class BatchState(StrEnum):
    """States as the wire shows them."""  # `jobs.batches.lifecycle` alone writes them, through `require_move`

    VALIDATING = "validating"  # its input waits to be read, or is being read
    FAILED = "failed"  # the input is bad or lost
    IN_PROGRESS = "in_progress"  # its chunks may run
    FINALIZING = "finalizing"  # no chunk is to run any more; its files are written once the open ones have ended
    COMPLETED = "completed"  # every request has a result
    EXPIRED = "expired"  # its window ended first; what was finished is in its files
    CANCELLING = "cancelling"  # as finalizing, on the tenant's wish
    CANCELLED = "cancelled"


class ChunkState(StrEnum):
    PLANNED = "planned"  # its batch is being validated: it exists for nobody else
    READY = "ready"  # may be hinted and claimed
    LEASED = "leased"  # one worker owns it until its lease ends
    WAITING = "waiting"  # its tenant's budget has no room for what is left of it
    DONE = "done"  # every line has a result
    SPLIT = "split"  # bisected after lost leases; its children carry on
    WITHDRAWN = "withdrawn"  # the batch was cancelled or expired


class UploadState(StrEnum):
    """States as the wire shows them."""  # `jobs.uploads` alone writes them, through `require_move`

    PENDING = "pending"  # parts may be added, until it is completed
    COMPLETED = "completed"  # its parts are a file
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # no part came for too long


class Priority(StrEnum):
    """Classes, each served before the next one; ageing keeps the last from starving."""

    URGENT = "urgent"
    NORMAL = "normal"
    BULK = "bulk"


class InvalidLines(StrEnum):
    """What validation does with malformed lines."""

    FAIL = "fail"  # as OpenAI does: nothing runs, nothing is billed
    SKIP = "skip"  # such lines become error lines and the rest runs


class UncoveredLines(StrEnum):
    """What becomes of lines that the tenant's budget does not cover."""

    WAIT = "wait"  # until there is room, or the batch's window is over
    FAIL = "fail"  # such a line becomes an error line, once none of the tenant's lines runs whose tokens may come back


class BudgetUnit(StrEnum):
    """What a window budget counts."""

    TOKENS = "tokens"
    MONEY = "money"


class BudgetWindow(StrEnum):
    """After what time it begins anew."""

    DAY = "day"
    MONTH = "month"
    TOTAL = "total"  # never


class DeliveryState(StrEnum):
    """States of what a webhook is to be told."""

    PENDING = "pending"  # to be sent, or to be sent again
    DELIVERED = "delivered"  # an answer of 2xx came
    FAILED = "failed"  # given up; a replay makes it pending again


class EventType(StrEnum):
    """What a webhook may be told of; the first four are OpenAI's."""

    BATCH_COMPLETED = "batch.completed"
    BATCH_FAILED = "batch.failed"
    BATCH_EXPIRED = "batch.expired"
    BATCH_CANCELLED = "batch.cancelled"
    BATCH_AT_RISK = "batch.at_risk"  # it is expected to end after its deadline; at most once a batch


_B, _C, _U = BatchState, ChunkState, UploadState

BATCH_MOVES: dict[BatchState, frozenset[BatchState]] = {
    _B.VALIDATING: frozenset({_B.FAILED, _B.IN_PROGRESS, _B.FINALIZING, _B.CANCELLING}),
    _B.IN_PROGRESS: frozenset({_B.FINALIZING, _B.CANCELLING}),
    # An expired batch passes through finalizing too: its finished lines are written out first.
    _B.FINALIZING: frozenset({_B.COMPLETED, _B.EXPIRED, _B.FAILED}),
    _B.CANCELLING: frozenset({_B.CANCELLED}),
    _B.FAILED: frozenset(),
    _B.COMPLETED: frozenset(),
    _B.EXPIRED: frozenset(),
    _B.CANCELLED: frozenset(),
}

CHUNK_MOVES: dict[ChunkState, frozenset[ChunkState]] = {
    _C.PLANNED: frozenset({_C.READY}),
    _C.READY: frozenset({_C.LEASED, _C.WAITING, _C.WITHDRAWN}),
    _C.LEASED: frozenset({_C.READY, _C.WAITING, _C.DONE, _C.SPLIT, _C.WITHDRAWN}),
    _C.WAITING: frozenset({_C.READY, _C.WITHDRAWN}),
    _C.DONE: frozenset(),
    _C.SPLIT: frozenset(),
    _C.WITHDRAWN: frozenset(),
}

UPLOAD_MOVES: dict[UploadState, frozenset[UploadState]] = {
    _U.PENDING: frozenset({_U.COMPLETED, _U.CANCELLED, _U.EXPIRED}),
    _U.COMPLETED: frozenset(),
    _U.CANCELLED: frozenset(),
    _U.EXPIRED: frozenset(),
}

TERMINAL_BATCH_STATES = frozenset(state for state, moves in BATCH_MOVES.items() if not moves)
OPEN_CHUNK_STATES = frozenset({_C.READY, _C.LEASED, _C.WAITING})


class IllegalMoveError(AssertionError):
    """Our own invariant is broken: a move that is not in the table."""


State = BatchState | ChunkState | UploadState


def require_move(before: State, after: State) -> None:
    """Raise IllegalMoveError unless the table allows `before` → `after`."""
    if after not in _moves_of(before):
        raise IllegalMoveError(f"{type(before).__name__}: {before} → {after} is not in the table")


def _moves_of(state: State) -> frozenset[BatchState] | frozenset[ChunkState] | frozenset[UploadState]:
    if isinstance(state, BatchState):
        return BATCH_MOVES[state]
    return CHUNK_MOVES[state] if isinstance(state, ChunkState) else UPLOAD_MOVES[state]


def sources_of(after: BatchState | ChunkState) -> list[str]:
    """Return the states from which `after` may be reached: the WHERE of a guarded UPDATE."""
    if isinstance(after, BatchState):
        return [state.value for state, moves in BATCH_MOVES.items() if after in moves]
    return [state.value for state, moves in CHUNK_MOVES.items() if after in moves]
