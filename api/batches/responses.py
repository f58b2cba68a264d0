"""Batches as API objects with their forecasts, in a few queries for a page of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy.orm import Session

from api.schemas.batches import BatchObject
from jobs.forecasts.outlooks import Outlook, outlooks
from jobs.settings import Settings
from jobs.tables import Batch


def batch_object(session: Session, batch: Batch, settings: Settings) -> BatchObject:
    """Return a batch as an API object."""
    return batch_objects(session, [batch], settings)[0]


def batch_objects(session: Session, batches: Sequence[Batch], settings: Settings) -> list[BatchObject]:
    return with_outlooks(batches, outlooks(session, batches, currency=settings.currency), settings)


def with_outlooks(batches: Sequence[Batch], by_batch: Mapping[str, Outlook], settings: Settings) -> list[BatchObject]:
    return [BatchObject.of(batch, by_batch[batch.id], currency=settings.currency) for batch in batches]
