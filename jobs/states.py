"""States of batches, chunks, uploads, counts, runs and extractions, and their moves. Nobody assigns one elsewhere."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeVar


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
    DEFERRED = "deferred"  # no lines from the object store, or no reading left today; its batch says until when
    DONE = "done"  # every line has a result
    SPLIT = "split"  # bisected after lost leases; its children carry on
    WITHDRAWN = "withdrawn"  # the batch was cancelled or expired


class UploadState(StrEnum):
    """States as the wire shows them."""  # `jobs.uploads` alone writes them, through `require_move`

    PENDING = "pending"  # parts may be added, until it is completed
    COMPLETED = "completed"  # its parts are a file
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # no part came for too long


class RunState(StrEnum):
    """States of a pipeline's run as the wire shows them."""  # `features.pipelines.lifecycle` alone writes them

    QUEUED = "queued"  # waits until no other run of its pipeline is under way
    RUNNING = "running"
    SUCCEEDED = "succeeded"  # every step is done, and what they put out is published
    FAILED = "failed"  # `reason` says why; resumed, it goes on where it stopped
    SKIPPED = "skipped"  # `reason` says why; it never began
    CANCELLING = "cancelling"  # its batch is being cancelled
    CANCELLED = "cancelled"


class ExtractionState(StrEnum):
    """States as the wire shows them."""  # `features.documents.lifecycle` alone writes them

    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"  # the batch that it waits for is being cancelled
    COMPLETED = "completed"  # every document has its record, a failed one, too
    FAILED = "failed"  # `reason` says why
    CANCELLED = "cancelled"


class IndexState(StrEnum):
    """States as the wire shows them."""  # `features.retrieval.lifecycle` alone writes them

    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"  # it is deleted, and the batch that it waits for is being cancelled
    COMPLETED = "completed"  # it can be searched; documents that could not be read are not in it
    FAILED = "failed"  # `reason` says why
    CANCELLED = "cancelled"


CANCELLING = IndexState.CANCELLING.value
"""The state of runs, extractions and indexes that are to end, the same for all of them."""
COURSE_UNDER_WAY = IndexState.IN_PROGRESS.value
"""The state in which extractions and indexes begin."""


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


class CountState(StrEnum):
    """Of an input that workers count token by token."""  # `jobs.batches.exact_counts` alone writes them

    COUNTING = "counting"  # waits for a turn at a worker, or has one
    COUNTED = "counted"
    FAILED = "failed"  # its input is gone


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


class StageKind(StrEnum):
    """What a batch does for another one, before that one's lines can run."""

    EMBED = "embed"  # queries become vectors
    FIND = "find"  # passages are found for them


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

_E = ExtractionState

EXTRACTION_MOVES: dict[ExtractionState, frozenset[ExtractionState]] = {
    _E.IN_PROGRESS: frozenset({_E.COMPLETED, _E.FAILED, _E.CANCELLING}),
    _E.CANCELLING: frozenset({_E.CANCELLED}),
    _E.COMPLETED: frozenset(),
    _E.FAILED: frozenset(),
    _E.CANCELLED: frozenset(),
}

INDEX_MOVES: dict[IndexState, frozenset[IndexState]] = {
    IndexState.IN_PROGRESS: frozenset({IndexState.COMPLETED, IndexState.FAILED, IndexState.CANCELLING}),
    IndexState.CANCELLING: frozenset({IndexState.CANCELLED}),
    IndexState.COMPLETED: frozenset(),
    IndexState.FAILED: frozenset(),
    IndexState.CANCELLED: frozenset(),
}

COUNT_MOVES: dict[CountState, frozenset[CountState]] = {
    _I.COUNTING: frozenset({_I.COUNTED, _I.FAILED}),
    _I.COUNTED: frozenset(),
    _I.FAILED: frozenset(),
}

TERMINAL_BATCH_STATES = frozenset(state for state, moves in BATCH_MOVES.items() if not moves)
TERMINAL_RUN_STATES = frozenset({_R.SUCCEEDED, _R.FAILED, _R.SKIPPED, _R.CANCELLED})
TERMINAL_INDEX_STATES = frozenset(state for state, moves in INDEX_MOVES.items() if not moves)
TERMINAL_EXTRACTION_STATES = frozenset(state for state, moves in EXTRACTION_MOVES.items() if not moves)
OPEN_CHUNK_STATES = frozenset({_C.READY, _C.LEASED, _C.WAITING, _C.DEFERRED})

# What has not ended, in the order in which queries and partial indexes name it.
LIVE_BATCH_STATES = tuple(state for state in BatchState if state not in TERMINAL_BATCH_STATES)
OPEN_RUN_STATES = tuple(state for state in RunState if state not in TERMINAL_RUN_STATES)
RUN_UNDER_WAY_STATES = tuple(state for state in OPEN_RUN_STATES if state is not _R.QUEUED)
OPEN_EXTRACTION_STATES = tuple(state for state in ExtractionState if state not in TERMINAL_EXTRACTION_STATES)
OPEN_INDEX_STATES = tuple(state for state in IndexState if state not in TERMINAL_INDEX_STATES)


class IllegalMoveError(AssertionError):
    """Our own invariant is broken: a move that is not in the table."""


State = TypeVar(
    "State", bound=BatchState | ChunkState | UploadState | CountState | RunState | ExtractionState | IndexState
)


def require_move(before: State, after: State) -> None:
    """Raise IllegalMoveError unless the table allows `before` → `after`."""
    if after not in _moves_of(type(before))[before]:
        raise IllegalMoveError(f"{type(before).__name__}: {before} → {after} is not in the table")


def sources_of(after: State) -> list[str]:
    """Return the states from which `after` may be reached: the WHERE of a guarded UPDATE."""
    return [state.value for state, moves in _moves_of(type(after)).items() if after in moves]


def _moves_of(kind: type[State]) -> dict[State, frozenset[State]]:
    tables: dict[type, Any] = {
        BatchState: BATCH_MOVES,
        ChunkState: CHUNK_MOVES,
        UploadState: UPLOAD_MOVES,
        CountState: COUNT_MOVES,
        RunState: RUN_MOVES,
        ExtractionState: EXTRACTION_MOVES,
        IndexState: INDEX_MOVES,
    }
    found: dict[State, frozenset[State]] = tables[kind]
    return found
