"""Tests of the states of runs, extractions and indexes: transitions of their tables only."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.orm import Session

from features.documents.states import ExtractionState
from features.documents.tables import Extraction
from features.pipelines.states import RunState
from features.pipelines.tables import Run
from features.retrieval.states import IndexState
from features.retrieval.tables import PassageIndex
from jobs.graphs.rows import enter
from jobs.states import CANCELLING, COURSE_UNDER_WAY, IllegalMoveError


@pytest.mark.parametrize(
    ("graph", "after"),
    [
        (Run(state="succeeded"), RunState.RUNNING),
        (Extraction(state="cancelling"), ExtractionState.COMPLETED),
        (PassageIndex(state="failed"), IndexState.CANCELLING),
    ],
)
def test_no_graph_enters_a_state_that_its_table_does_not_allow(session: Session, graph: Any, after: Any) -> None:
    before = graph.state
    with pytest.raises(IllegalMoveError):
        enter(session, graph, after, is_end=False)
    assert graph.state == before


def test_states_that_graphs_have_in_common_are_called_the_same() -> None:
    assert {RunState.CANCELLING, ExtractionState.CANCELLING, IndexState.CANCELLING} == {CANCELLING}
    assert {ExtractionState.IN_PROGRESS, IndexState.IN_PROGRESS} == {COURSE_UNDER_WAY}
