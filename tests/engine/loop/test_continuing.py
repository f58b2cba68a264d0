"""Tests of dividing a step's samples into those of sequences that only go on and the others, and of recording both."""

from __future__ import annotations

from typing import Any

import pytest

from engine.loop.continuing import Division, divide
from engine.loop.recorder import Recorder
from engine.outputs import BROKEN_ROW, NO_TOKEN
from engine.params import SamplingParams
from engine.scheduling.blocks import NO_PARENT, PrefixChain, sha256_digest
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Request, Sequence
from engine.scheduling.seat_numbers import MAX_STOP_TOKENS, ints
from engine.scheduling.seat_table import SeatTable
from tests.engine.loop.hashing_device import OutputMatcher
from tests.engine.simulated_engine import SimulatedEngine

STOP = 7


def sequence_of(prompt: list[int], *, max_tokens: int = 9, **params: Any) -> Sequence:
    request = Request(
        request_id=prompt[0],
        prompt_token_ids=prompt,
        params=SamplingParams(**params),
        max_tokens=max_tokens,
        seed=0,
        eos_token_ids=frozenset({STOP}),
        arrival=0,
    )
    return Sequence(request, 0, PrefixChain("", 4, sha256_digest))


def divided(*sequences: Sequence, tokens: list[int], counts: list[int] | None = None) -> tuple[StepPlan, Division]:
    """Divide a step that computes that many of each one's newest tokens, drafts last; without `counts` all."""
    table, plan = SeatTable(len(sequences), 1), StepPlan()
    for row, sequence in enumerate(sequences):
        table.take(row, sequence, chain_position=NO_PARENT)
        count = sequence.num_tokens if counts is None else counts[row]
        plan.add(table, [sequence], ints([row]), ints([count]))
    return plan, divide(plan, table, ints(tokens))


def going_on(divided: tuple[StepPlan, Division]) -> list[int]:
    plan, division = divided
    return [plan.sequences[index].request.request_id for index in division.going_on.tolist()]


def others(divided: tuple[StepPlan, Division]) -> list[tuple[int, list[int]]]:
    return [(other.sequence.request.request_id, list(other.samples)) for other in divided[1].others]


def test_a_token_that_ends_nothing_goes_on_with_its_sequence() -> None:
    result = divided(sequence_of([1]), sequence_of([2, 2]), tokens=[5, 6])
    assert (going_on(result), others(result)) == ([1, 2], [])
    assert result[1].token_ids.tolist() == [5, 6]


def test_each_of_the_others_tells_how_many_go_on_before_it() -> None:
    result = divided(*(sequence_of([number]) for number in (1, 2, 3, 4, 5)), tokens=[5, STOP, STOP, 5, 5])
    assert (going_on(result), others(result)) == ([1, 4, 5], [(2, [1]), (3, [2])])
    assert [other.num_going_on for other in result[1].others] == [1, 1]


def test_a_broken_row_counts_the_good_ones_before_it() -> None:
    engine = SimulatedEngine()
    for number in range(1, 6):
        engine.add([number], 9)
    plan = engine.scheduler.schedule()
    recorder = Recorder(engine.scheduler)
    deltas = recorder.report(recorder.append(plan, ints([5, BROKEN_ROW, 5, 5, BROKEN_ROW]), {}))
    deltas += recorder.release()
    assert {delta.request_id: delta.token_ids for delta in deltas} == {0: [5], 1: [], 2: [5], 3: [5], 4: []}
    assert {delta.request_id: delta.good_rows_before for delta in deltas if delta.is_broken} == {1: 1, 4: 3}


@pytest.mark.parametrize("token", [STOP, NO_TOKEN, BROKEN_ROW])
def test_a_stop_token_and_a_row_without_a_token_may_end_their_sequence(token: int) -> None:
    result = divided(sequence_of([1]), sequence_of([2]), sequence_of([3]), tokens=[5, token, 5])
    assert (going_on(result), others(result)) == ([1, 3], [(2, [1])])


def test_another_sequences_stop_token_is_no_end() -> None:
    result = divided(sequence_of([1], stop_token_ids=[9]), sequence_of([2]), tokens=[5, 9])
    assert going_on(result) == [1, 2]


def test_a_sequence_with_more_stop_tokens_than_a_seat_holds_is_recorded_by_itself() -> None:
    many, few = list(range(20, 20 + MAX_STOP_TOKENS)), [20]  # and the end-of-sequence token
    result = divided(sequence_of([1], stop_token_ids=many), sequence_of([2], stop_token_ids=few), tokens=[5, 5])
    assert (going_on(result), others(result)) == ([2], [(1, [0])])


@pytest.mark.parametrize(("max_tokens", "goes_on"), [(0, False), (1, False), (2, True)])
def test_the_last_token_of_a_sequence_ends_it(max_tokens: int, *, goes_on: bool) -> None:
    assert bool(going_on(divided(sequence_of([1, 1, 1], max_tokens=max_tokens), tokens=[5]))) is goes_on


@pytest.mark.parametrize("params", [{"logprobs": 0}, {"prompt_logprobs": 1}])
def test_a_sequence_with_log_probabilities_is_recorded_by_itself(params: dict[str, Any]) -> None:
    result = divided(sequence_of([1], **params), sequence_of([2]), tokens=[5, 5])
    assert (going_on(result), others(result)) == ([2], [(1, [0])])


def test_a_sequence_with_a_grammar_is_recorded_by_itself() -> None:
    sequence = sequence_of([1])
    sequence.matcher = OutputMatcher()  # type: ignore[assignment]
    assert going_on(divided(sequence, tokens=[5])) == []


def test_samples_are_those_of_the_step_beside_drafts_and_pieces_of_prompts() -> None:
    sequences = [sequence_of([number, number]) for number in (1, 2, 3, 4)]
    sequences[0].draft_token_ids, sequences[1].draft_token_ids = [5], [6, 6]
    result = divided(*sequences, counts=[3, 4, 1, 2], tokens=[5, 6, 6, STOP, 6, 8])
    assert (going_on(result), result[1].token_ids.tolist()) == ([4], [8])
    assert others(result) == [(1, [0, 1]), (2, [2, 3, 4])]


def test_a_sequence_that_has_lost_its_seat_is_recorded_by_itself() -> None:
    table, plan, sequence = SeatTable(1, 1), StepPlan(), sequence_of([1])
    table.take(0, sequence, chain_position=NO_PARENT)
    plan.add(table, [sequence], ints([0]), ints([1]))
    table.leave(sequence)
    table.take(0, sequence_of([2]), chain_position=NO_PARENT)
    division = divide(plan, table, ints([5]))
    assert others((plan, division)) == [(1, [0])]
