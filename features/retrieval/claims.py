"""Claims of control workers on indexes, and the indexes that are due."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from features.retrieval.states import IndexState
from features.retrieval.tables import PassageIndex
from jobs.claims.claims import Claims
from jobs.claims.work import ClaimedWork
from jobs.graphs.due import Due, due_query, find_due

IndexWork = ClaimedWork[PassageIndex]

INDEXES = Claims(PassageIndex, [IndexState.IN_PROGRESS, IndexState.CANCELLING])

_DUE = due_query("passage_index", parts="passage_index_stage", under_way=IndexState.IN_PROGRESS)


def due_indexes(session: Session) -> Sequence[Due]:
    """Return a few indexes of each tenant that a worker can advance, those that waited longest first."""
    return find_due(session, _DUE)
