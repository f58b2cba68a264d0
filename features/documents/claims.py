"""Claims of control workers on extractions, and the extractions that are due."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from features.documents.states import ExtractionState
from features.documents.tables import Extraction
from jobs.claims.claims import Claims
from jobs.claims.work import ClaimedWork
from jobs.graphs.due import Due, due_query, find_due

ExtractionWork = ClaimedWork[Extraction]

EXTRACTIONS = Claims(Extraction, [ExtractionState.IN_PROGRESS, ExtractionState.CANCELLING])

_DUE = due_query("extraction", parts="extraction_stage", under_way=ExtractionState.IN_PROGRESS)


def due_extractions(session: Session) -> Sequence[Due]:
    """Return a few extractions of each tenant that a worker can advance, those that waited longest first."""
    return find_due(session, _DUE)
