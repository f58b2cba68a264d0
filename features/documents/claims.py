"""Claims on extractions: which control worker advances one, and until when; and those that are due for one."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from features.documents.tables import Extraction
from jobs.claims.claims import Claims
from jobs.claims.work import ClaimedWork
from jobs.graphs.due import Due, due_query, find_due
from jobs.states import ExtractionState

ExtractionWork = ClaimedWork[Extraction]

EXTRACTIONS = Claims(Extraction, [ExtractionState.IN_PROGRESS, ExtractionState.CANCELLING])

_DUE = due_query("extraction", parts="extraction_stage", under_way=ExtractionState.IN_PROGRESS)


def due_extractions(session: Session) -> Sequence[Due]:
    """Return extractions that somebody can go on with, of each tenant a few, those first that wait longest."""
    return find_due(session, _DUE)
