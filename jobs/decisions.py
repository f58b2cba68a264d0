"""Decisions about batches, for their owners: a row per kind and subject, with a count, kept for a day.

Repeated claims by one worker share a row: the number of rows grows with the workers of a batch, not with its lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum

from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.counted import counted
from jobs.database import transaction
from jobs.tables import Decision

KEPT_FOR = timedelta(days=1)
"""After the last occurrence."""
MAX_SHOWN = 200
_ROWS = 10_000  # per transaction


class Kind(StrEnum):
    """What was decided; the subject of decisions about workers is a worker's id."""

    VALIDATED = "validated"  # its input was read: the detail summarises it
    CLAIMED = "claimed"  # a worker claimed chunks
    GIVEN_BACK = "given_back"  # a worker gave chunks back, unfinished and on purpose
    DEFERRED = "deferred"  # the object store did not return their lines to a worker: the batch is put off
    LOST_LEASE = "lost_lease"  # a worker went silent while it had chunks: the detail is the outcome of the last one
    WAITS_FOR_BUDGET = "waits_for_budget"  # chunks were set aside
    WAITS_FOR_READING = "waits_for_reading"  # the tenant has used up the day's reading: the batch is put off
    WENT_ON = "went_on"  # chunks that were set aside are back in the queue
    PREEMPTED = "preempted"  # a worker's engine interrupted answers, to continue later
    SWAPPED = "swapped"  # of these, the computed state went to host memory
    PREFIX_FOUND = "prefix_found"  # prompt tokens found in a worker's prefix cache
    CHANGED = "changed"  # its owner changed its class or window


_SENTENCES = {
    Kind.VALIDATED: "Its input was validated: {detail}.",
    Kind.CLAIMED: "Worker {subject} claimed {chunks}.",
    Kind.GIVEN_BACK: "Worker {subject} gave {chunks} back.",
    Kind.DEFERRED: "Worker {subject} could not read {chunks} from the object store.",
    Kind.LOST_LEASE: "Worker {subject} went silent with {chunks}; the last one is {detail}.",
    Kind.WAITS_FOR_READING: "Worker {subject} put off {chunks}: the day's reading time was used up.",
    Kind.WAITS_FOR_BUDGET: "The budget had no room for what {chunks} needed; {detail} last.",
    Kind.WENT_ON: "The budget had room for {chunks} that had waited.",
    Kind.PREEMPTED: "The engine of worker {subject} interrupted answers {times} to let others run first.",
    Kind.SWAPPED: "The engine of worker {subject} kept the state of interrupted answers {times}.",
    Kind.PREFIX_FOUND: "The engine of worker {subject} had {tokens} of prompts in its cache.",
    Kind.CHANGED: "Its owner changed it: {detail}.",
}


def note(
    session: Session, batch_id: str, kind: Kind, *, subject: str = "", detail: str | None = None, num: int = 1
) -> None:
    """Record a decision, `num` times. Call it late: it locks a row until the transaction ends."""
    if num:
        values = {"batch_id": batch_id, "kind": kind.value, "subject": subject, "detail": detail, "num": num}
        session.execute(_NOTE, values)


def read(session: Session, batch_id: str) -> Sequence[Decision]:
    """Return the decisions about a batch, latest first."""
    mine = select(Decision).where(Decision.batch_id == batch_id)
    ordered = mine.order_by(Decision.last_at.desc(), Decision.kind, Decision.subject).limit(MAX_SHOWN)
    return session.scalars(ordered, execution_options={"populate_existing": True}).all()


def sentence(decision: Decision) -> str:
    """Return a decision as a sentence for the batch's owner."""
    kind = known_kind(decision.kind)
    if not isinstance(kind, Kind):
        return f"A newer release of Tokenmill decided {kind!r} {counted(decision.num, 'time')}."
    counts = {f"{unit}s": counted(decision.num, unit) for unit in ("chunk", "time", "token")}
    return _SENTENCES[kind].format(subject=decision.subject, detail=decision.detail, **counts)


def known_kind(kind: str) -> Kind | str:
    """Return a kind; as text where a newer release wrote it, which may run at the same time."""
    try:
        return Kind(kind)
    except ValueError:
        return kind


def forget(maker: sessionmaker[Session]) -> int:
    """Delete expired rows; return how many."""
    total = 0
    while True:
        with transaction(maker) as session:
            num = len(session.execute(_FORGET, {"kept": KEPT_FOR, "limit": _ROWS}).all())
        if not num:
            return total
        total += num


_NOTE = text("""
    INSERT INTO decision AS known (batch_id, kind, subject, num, detail, first_at, last_at)
    VALUES (:batch_id, :kind, :subject, :num, :detail, clock_timestamp(), clock_timestamp())
    ON CONFLICT (batch_id, kind, subject) DO UPDATE
    SET num = known.num + excluded.num, detail = excluded.detail, last_at = excluded.last_at
""")

_FORGET = text("""
    DELETE FROM decision WHERE (batch_id, kind, subject) IN (
        SELECT batch_id, kind, subject FROM decision WHERE last_at < now() - CAST(:kept AS interval) LIMIT :limit
        FOR UPDATE SKIP LOCKED
    ) RETURNING 1
""")
