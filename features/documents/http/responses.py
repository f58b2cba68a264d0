"""Extractions as response bodies with their stages, a page of them in a few queries."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from features.documents import stages
from features.documents.schemas.extractions import ExtractionObject
from features.documents.tables import Extraction
from jobs.database import clock
from jobs.settings import Settings


def extraction_object(session: Session, extraction: Extraction, settings: Settings) -> ExtractionObject:
    """Return an extraction as a response body."""
    return extraction_objects(session, [extraction], settings)[0]


def extraction_objects(
    session: Session, extractions: Sequence[Extraction], settings: Settings
) -> list[ExtractionObject]:
    begun = stages.stages_of_each(session, [extraction.id for extraction in extractions])
    batches = stages.all_batches_of_each(session, begun)
    now = clock(session)
    return [
        ExtractionObject.of(
            each,
            begun[each.id],
            batches[each.id],
            end=stages.expected_end(each, begun[each.id], batches[each.id], now=now),
            currency=settings.currency,
        )
        for each in extractions
    ]
