"""Batches as the wire has them, with what is to be expected of each: a few queries for a page of them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from api.schemas.batches import BatchObject
from jobs.forecasts.outlooks import outlooks
from jobs.tables import Batch


def shown(session: Session, batch: Batch) -> BatchObject:
    """Return a batch as the wire has it."""
    return all_shown(session, [batch])[0]


def all_shown(session: Session, found: Sequence[Batch]) -> list[BatchObject]:
    told = outlooks(session, found)
    return [BatchObject.of(batch, told[batch.id]) for batch in found]
