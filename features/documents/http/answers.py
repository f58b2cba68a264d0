"""Extractions as the wire has them, with their stages: a few queries for a page of them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from features.documents import stages
from features.documents.schemas.extractions import ExtractionObject
from features.documents.tables import Extraction
from jobs.settings import Settings


def shown(session: Session, extraction: Extraction, settings: Settings) -> ExtractionObject:
    """Return an extraction as the wire has it."""
    return all_shown(session, [extraction], settings)[0]


def all_shown(session: Session, extractions: Sequence[Extraction], settings: Settings) -> list[ExtractionObject]:
    found = stages.stages_of_each(session, [extraction.id for extraction in extractions])
    batches = stages.all_batches_of_each(session, found)
    currency = settings.currency
    return [ExtractionObject.of(each, found[each.id], batches[each.id], currency=currency) for each in extractions]
