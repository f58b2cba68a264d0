"""Batches as the wire has them, with what is to be expected of each: a few queries for a page of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy.orm import Session

from api.schemas.batches import BatchObject
from jobs.forecasts.outlooks import Outlook, outlooks
from jobs.settings import Settings
from jobs.tables import Batch


def shown(session: Session, batch: Batch, settings: Settings) -> BatchObject:
    """Return a batch as the wire has it."""
    return all_shown(session, [batch], settings)[0]


def all_shown(session: Session, found: Sequence[Batch], settings: Settings) -> list[BatchObject]:
    return with_outlooks(found, outlooks(session, found, currency=settings.currency), settings)


def with_outlooks(found: Sequence[Batch], told: Mapping[str, Outlook], settings: Settings) -> list[BatchObject]:
    return [BatchObject.of(batch, told[batch.id], currency=settings.currency) for batch in found]
