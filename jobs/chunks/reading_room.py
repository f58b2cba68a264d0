"""Chunks of documents whose tenant has used up the day's reading: put off with their batch until the next day."""

from __future__ import annotations

from sqlalchemy.orm import Session

from jobs.accounts.reading import note_wait, reading_today
from jobs.chunks import deferring
from jobs.chunks.leasing import ClaimedChunk
from jobs.decisions import Kind


def put_off_if_used_up(session: Session, claim: ClaimedChunk, *, default_seconds: int | None) -> bool:
    """Give back a chunk of which no line is running where its tenant has no reading left; return whether it has none.

    Raises FencedOutError.
    """
    reading = reading_today(session, claim.tenant_id, default_seconds=default_seconds)
    if not reading.is_used_up:
        return False
    deferring.defer(session, claim, period=reading.left_of_day, kind=Kind.WAITS_FOR_READING)
    note_wait(session, claim.batch_id, limit_seconds=reading.limit_seconds)
    return True
