"""Claims on indexes: which control worker builds one, and until when; and those that are due for one."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from features.retrieval.tables import PassageIndex
from jobs.claims.claims import Claims
from jobs.claims.work import ClaimedWork
from jobs.graphs.due import Due, due_query, find_due
from jobs.states import IndexState

IndexWork = ClaimedWork[PassageIndex]

INDEXES = Claims(PassageIndex, [IndexState.IN_PROGRESS, IndexState.CANCELLING])

_DUE = due_query("passage_index", parts="passage_index_stage", under_way=IndexState.IN_PROGRESS)


def due_indexes(session: Session) -> Sequence[Due]:
    """Return indexes that somebody can go on with, of each tenant a few, those first that wait longest."""
    return find_due(session, _DUE)
