"""Indexes as response bodies with their stages, a page of them in a few queries."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from features.retrieval import stages
from features.retrieval.schemas import IndexObject
from features.retrieval.tables import PassageIndex
from flows.nodes import batches_of
from jobs.database import clock
from jobs.settings import Settings


def index_object(session: Session, index: PassageIndex, settings: Settings) -> IndexObject:
    """Return an index as a response body."""
    return index_objects(session, [index], settings)[0]


def index_objects(session: Session, indexes: Sequence[PassageIndex], settings: Settings) -> list[IndexObject]:
    begun_by_id = stages.stages_of_each(session, [index.id for index in indexes])
    batches = batches_of(session, [stage for begun in begun_by_id.values() for stage in begun])
    now = clock(session)
    return [
        IndexObject.of(
            each,
            begun_by_id[each.id],
            batches,
            end=stages.expected_end(each, begun_by_id[each.id], batches, now=now),
            currency=settings.currency,
        )
        for each in indexes
    ]
