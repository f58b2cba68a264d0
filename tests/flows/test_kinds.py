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
from flows.kinds import Kind
from flows.states import FlowState
from jobs.states import CANCELLING, IllegalMoveError


@pytest.mark.parametrize(
    ("flow", "after"),
    [
        (Run(state="succeeded"), RunState.RUNNING),
        (Extraction(state="cancelling"), ExtractionState.COMPLETED),
        (PassageIndex(state="failed"), IndexState.CANCELLING),
    ],
)
def test_no_flow_enters_a_state_that_its_table_does_not_allow(session: Session, flow: Any, after: Any) -> None:
    before = flow.state
    with pytest.raises(IllegalMoveError):
        Kind(type(flow), "flow", ends=()).move(session, flow, after)
    assert flow.state == before


def test_states_that_flows_have_in_common_are_called_the_same() -> None:
    assert {RunState.CANCELLING, ExtractionState.CANCELLING, IndexState.CANCELLING} == {CANCELLING}
    assert {*RunState, *ExtractionState, *IndexState} == set(FlowState)
