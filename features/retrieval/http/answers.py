"""Indexes as the wire has them, with their stages: a few queries for a page of them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from features.retrieval import stages
from features.retrieval.schemas import IndexObject
from features.retrieval.tables import PassageIndex
from jobs.courses.stages import batches_of
from jobs.settings import Settings


def shown(session: Session, index: PassageIndex, settings: Settings) -> IndexObject:
    """Return an index as the wire has it."""
    return all_shown(session, [index], settings)[0]


def all_shown(session: Session, indexes: Sequence[PassageIndex], settings: Settings) -> list[IndexObject]:
    found = stages.stages_of_each(session, [index.id for index in indexes])
    batches = batches_of(session, [stage for begun in found.values() for stage in begun])
    return [IndexObject.of(each, found[each.id], batches, currency=settings.currency) for each in indexes]
