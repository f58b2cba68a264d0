"""States of batches, chunks, uploads and counts, and the check of moves, which the states of features share."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar


class State(StrEnum):
    """A state with a table of moves. Nobody assigns one but the module that owns its kind, through `require_move`."""

    @property
    def following(self) -> frozenset[State]:
        """Return the states that may come next: this one's row of the table."""
        raise NotImplementedError


AnyState = TypeVar("AnyState", bound=State)


class IllegalMoveError(AssertionError):
    """Our own invariant is broken: a move that is not in the table."""


def require_move(before: AnyState, after: AnyState) -> None:
    """Raise IllegalMoveError unless the table allows `before` → `after`."""
    if after not in before.following:
        raise IllegalMoveError(f"{type(before).__name__}: {before} → {after} is not in the table")


def sources_of(after: State) -> list[str]:
    """Return the states from which `after` may be reached: the WHERE of a guarded UPDATE."""
    return [state.value for state in type(after) if after in state.following]


CANCELLING = "cancelling"
"""The state of runs, extractions and indexes that are to end, the same for all of them."""


class BatchState(State):
    """States as the wire shows them."""  # `jobs.batches.lifecycle` alone writes them, through `require_move`

    VALIDATING = "validating"  # its input waits to be read, or is being read
    FAILED = "failed"  # the input is bad or lost
    IN_PROGRESS = "in_progress"  # its chunks may run
    FINALIZING = "finalizing"  # no chunk is to run any more; its files are written once the open ones have ended
    COMPLETED = "completed"  # every request has a result
    EXPIRED = "expired"  # its window ended first; what was finished is in its files
    CANCELLING = "cancelling"  # as finalizing, on the tenant's wish
    CANCELLED = "cancelled"

    @property
    def following(self) -> frozenset[BatchState]:
        return BATCH_MOVES[self]


class ChunkState(State):
    PLANNED = "planned"  # its batch is being validated: it exists for nobody else
    READY = "ready"  # may be hinted and claimed
    LEASED = "leased"  # one worker owns it until its lease ends
    WAITING = "waiting"  # its tenant's budget has no room for what is left of it
    DEFERRED = "deferred"  # no lines from the object store, or no reading left today; its batch says until when
    DONE = "done"  # every line has a result
    SPLIT = "split"  # bisected after lost leases; its children carry on
    WITHDRAWN = "withdrawn"  # the batch was cancelled or expired

    @property
    def following(self) -> frozenset[ChunkState]:
        return CHUNK_MOVES[self]


class UploadState(State):
    """States as the wire shows them."""  # `jobs.uploads` alone writes them, through `require_move`

    PENDING = "pending"  # parts may be added, until it is completed
    COMPLETED = "completed"  # its parts are a file
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # no part came for too long

    @property
    def following(self) -> frozenset[UploadState]:
        return UPLOAD_MOVES[self]


class CountState(State):
    """Of an input that workers count token by token."""  # `jobs.batches.exact_counts` alone writes them

    COUNTING = "counting"  # waits for a turn at a worker, or has one
    COUNTED = "counted"
    FAILED = "failed"  # its input is gone

    @property
    def following(self) -> frozenset[CountState]:
        return COUNT_MOVES[self]


class Priority(StrEnum):
    """Classes, each served before the next one; ageing keeps those that batches ask for from starving."""

    URGENT = "urgent"
    NORMAL = "normal"
    BULK = "bulk"
    OVERFLOW = "overflow"  # beyond its tenant's token limit, on capacity that nobody else wants; nobody asks for it


class AskedPriority(StrEnum):
    """The classes that a batch may ask for, best first."""

    URGENT = Priority.URGENT
    NORMAL = Priority.NORMAL
    BULK = Priority.BULK


class PrincipalKind(StrEnum):
    """What somebody has signed in with."""

    KEY = "key"


class Scope(StrEnum):
    """What a key may do; `api.scopes` says which of them a call needs."""

    SUBMIT = "submit"  # change what its tenant has: files, batches, pipelines, webhooks, reviews
    READ = "read"  # see what its tenant has
    ADMIN = "admin"  # run the service: of operators' keys, which belong to no tenant, and all that they may


class InvalidLines(StrEnum):
    """What validation does with invalid lines."""

    FAIL = "fail"  # as OpenAI does: nothing runs, nothing is billed
    SKIP = "skip"  # such lines become error lines and the rest runs


class UncoveredLines(StrEnum):
    """What becomes of lines that the tenant's budget does not cover."""

    WAIT = "wait"  # until there is room, or the batch's window is over
    FAIL = "fail"  # such a line becomes an error line, once none of the tenant's lines runs whose tokens may come back


class EngineChoice(StrEnum):
    """Which kinds of engine may answer a batch's lines."""

    SAME = "same"  # that of its first answer
    ANY = "any"


class BudgetUnit(StrEnum):
    """What a window budget counts."""

    TOKENS = "tokens"
    MONEY = "money"


class BudgetWindow(StrEnum):
    """After what time it begins anew."""

    DAY = "day"
    MONTH = "month"
    TOTAL = "total"  # never


class EventType(StrEnum):
    """What a webhook may be told of; the first four are OpenAI's. What each is about is its first word."""

    BATCH_COMPLETED = "batch.completed"
    BATCH_FAILED = "batch.failed"
    BATCH_EXPIRED = "batch.expired"
    BATCH_CANCELLED = "batch.cancelled"
    BATCH_AT_RISK = "batch.at_risk"  # it is expected to end after its deadline; at most once a batch
    RUN_FAILED = "run.failed"
    RUN_SKIPPED = "run.skipped"
    RUN_LATE = "run.late"  # it has not ended when its schedule wants it to have; at most once a run
    SCHEDULE_SKIPPING = "schedule.skipping"  # three runs in a row were skipped; again once one was not
    REPORT_READY = "report.ready"  # a pipeline's report of a day is due; once a day


_B, _C, _U, _I = BatchState, ChunkState, UploadState, CountState

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
    _C.READY: frozenset({_C.LEASED, _C.WAITING, _C.DEFERRED, _C.WITHDRAWN}),
    _C.LEASED: frozenset({_C.READY, _C.WAITING, _C.DEFERRED, _C.DONE, _C.SPLIT, _C.WITHDRAWN}),
    _C.WAITING: frozenset({_C.READY, _C.WITHDRAWN}),
    _C.DEFERRED: frozenset({_C.READY, _C.WITHDRAWN}),
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

COUNT_MOVES: dict[CountState, frozenset[CountState]] = {
    _I.COUNTING: frozenset({_I.COUNTED, _I.FAILED}),
    _I.COUNTED: frozenset(),
    _I.FAILED: frozenset(),
}

TERMINAL_BATCH_STATES = frozenset(state for state, moves in BATCH_MOVES.items() if not moves)
OPEN_CHUNK_STATES = frozenset({_C.READY, _C.LEASED, _C.WAITING, _C.DEFERRED})

# What has not ended, in the order in which queries and partial indexes name it.
LIVE_BATCH_STATES = tuple(state for state in BatchState if state not in TERMINAL_BATCH_STATES)
