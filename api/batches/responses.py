"""Batches as API objects with their forecasts, in a few queries for a page of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy.orm import Session

from api.schemas.batches import BatchObject
from jobs.forecasts.outlooks import Outlook, outlooks
from jobs.overview import finding
from jobs.settings import Settings
from jobs.tables import Batch


def batch_object(session: Session, batch: Batch, settings: Settings) -> BatchObject:
    """Return a batch as an API object."""
    return batch_objects(session, [batch], settings)[0]


def batch_objects(session: Session, batches: Sequence[Batch], settings: Settings) -> list[BatchObject]:
    return with_outlooks(session, batches, outlooks(session, batches, currency=settings.currency), settings)


def with_outlooks(
    session: Session, batches: Sequence[Batch], by_batch: Mapping[str, Outlook], settings: Settings
) -> list[BatchObject]:
    names = finding.names_of(session, batches)
    return [
        BatchObject.of(batch, by_batch[batch.id], name=names.get(batch.id), currency=settings.currency)
        for batch in batches
    ]
