from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.documents.states import ExtractionState
from features.pipelines.states import RunState
from features.retrieval.states import IndexState
from jobs import states
from jobs.states import (
    BATCH_MOVES,
    CHUNK_MOVES,
    TERMINAL_BATCH_STATES,
    BatchState,
    ChunkState,
    CountState,
    IllegalMoveError,
    State,
    UploadState,
    require_move,
    sources_of,
)

ALL = st.sampled_from(BatchState) | st.sampled_from(ChunkState)


@given(ALL, ALL)
def test_a_move_is_allowed_exactly_when_the_table_has_it(
    before: BatchState | ChunkState, after: BatchState | ChunkState
) -> None:
    table: dict[object, frozenset[object]] = {**BATCH_MOVES, **CHUNK_MOVES}  # type: ignore[dict-item]
    if type(before) is type(after) and after in table[before]:
        require_move(before, after)
        assert before.value in sources_of(after)
    else:
        with pytest.raises(IllegalMoveError):
            require_move(before, after)


@pytest.mark.parametrize(
    "kind", [BatchState, ChunkState, UploadState, CountState, RunState, ExtractionState, IndexState]
)
def test_every_state_has_its_row_of_the_table(kind: type[State]) -> None:
    assert {type(after) for state in kind for after in state.following} == {kind}


@given(st.sampled_from(BatchState), st.randoms(use_true_random=False))
def test_any_walk_of_a_batch_ends_soon_in_a_terminal_state(state: BatchState, random: object) -> None:
    """No cycles: the longest life is validating, in progress, finalizing or cancelling, end."""
    steps = 0
    while state not in TERMINAL_BATCH_STATES:
        state = random.choice(sorted(BATCH_MOVES[state]))  # type: ignore[attr-defined]
        steps += 1
        assert steps <= 3


def test_every_batch_state_is_reached_from_validating() -> None:
    reached, grown = {BatchState.VALIDATING}, True
    while grown:
        following = reached.union(*(BATCH_MOVES[state] for state in reached))
        grown, reached = following != reached, following
    assert reached == set(BatchState)


def test_the_terminal_states_are_the_four_of_the_contract() -> None:
    assert {state.value for state in TERMINAL_BATCH_STATES} == {"failed", "completed", "expired", "cancelled"}


def test_planned_chunks_ended_leases_and_chunks_that_have_waited_get_into_the_queue() -> None:
    assert sources_of(ChunkState.READY) == ["planned", "leased", "waiting", "deferred"]
    assert sources_of(ChunkState.DONE) == ["leased"]


def test_no_statement_spells_which_states_are_open() -> None:
    jobs = Path(states.__file__).parent
    sources = [*jobs.rglob("*.py"), *jobs.with_name("features").rglob("*.py")]
    assert [str(path) for path in sources if f"'{states.CANCELLING}'" in path.read_text()] == []
