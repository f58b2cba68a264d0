"""Tests of dividing a step's sequences into stretches that only go on and the others, and of recording both."""

from __future__ import annotations

from typing import Any

import pytest

from engine.loop.continuing import ContinuingSequences, Stretch
from engine.loop.recorder import Recorder
from engine.outputs import BROKEN_ROW, NO_TOKEN
from engine.params import SamplingParams
from engine.scheduling.blocks import PrefixChain, sha256_digest
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Request, Sequence
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


def plan_of(*sequences: Sequence, num_sampled: list[int] | None = None) -> StepPlan:
    """Plan all tokens of the sequences, each with that many samples."""
    lengths = [sequence.num_tokens for sequence in sequences]
    return StepPlan(list(sequences), [0] * len(lengths), lengths, num_sampled or [1] * len(lengths))


def going_on(stretches: list[Stretch]) -> list[int]:
    return [sequence.request.request_id for stretch in stretches for sequence, _ in stretch.going_on]


def others(stretches: list[Stretch]) -> list[tuple[int, list[int]]]:
    found = [stretch.other for stretch in stretches if stretch.other is not None]
    return [(sequence.request.request_id, list(rows)) for sequence, rows in found]


def test_a_token_that_ends_nothing_goes_on_with_its_sequence() -> None:
    (stretch,) = ContinuingSequences().divide(plan_of(sequence_of([1]), sequence_of([2, 2])), [5, 6])
    assert [(sequence.request.request_id, token) for sequence, token in stretch.going_on] == [(1, 5), (2, 6)]
    assert stretch.other is None


def test_stretches_and_the_others_keep_their_order() -> None:
    plan = plan_of(*(sequence_of([number]) for number in (1, 2, 3, 4, 5)))
    stretches = ContinuingSequences().divide(plan, [5, STOP, STOP, 5, 5])
    assert [going_on([stretch]) for stretch in stretches] == [[1], [], [4, 5]]
    assert [others([stretch]) for stretch in stretches] == [[(2, [1])], [(3, [2])], []]


def test_deltas_have_the_order_of_the_step_and_a_broken_row_counts_the_good_ones_before_it() -> None:
    engine = SimulatedEngine()
    for number in range(1, 6):
        engine.add([number], 9)
    plan = engine.scheduler.schedule()
    deltas = [delta for _, delta in Recorder(engine.scheduler).append(plan, [5, BROKEN_ROW, 5, 5, BROKEN_ROW], {})]
    assert [delta.request_id for delta in deltas] == [0, 1, 2, 3, 4]
    assert [delta.token_ids for delta in deltas] == [[5], [], [5], [5], []]
    assert [delta.good_rows_before for delta in deltas] == [None, 1, None, None, 3]


@pytest.mark.parametrize("token", [STOP, NO_TOKEN, BROKEN_ROW])
def test_a_stop_token_and_a_row_without_a_token_may_end_their_sequence(token: int) -> None:
    plan = plan_of(sequence_of([1]), sequence_of([2]), sequence_of([3]))
    stretches = ContinuingSequences().divide(plan, [5, token, 5])
    assert (going_on(stretches), others(stretches)) == ([1, 3], [(2, [1])])


@pytest.mark.parametrize(("max_tokens", "goes_on"), [(0, False), (1, False), (2, True)])
def test_the_last_token_of_a_sequence_ends_it(max_tokens: int, *, goes_on: bool) -> None:
    stretches = ContinuingSequences().divide(plan_of(sequence_of([1, 1, 1], max_tokens=max_tokens)), [5])
    assert bool(going_on(stretches)) is goes_on


@pytest.mark.parametrize("params", [{"logprobs": 0}, {"prompt_logprobs": 1}])
def test_a_sequence_with_log_probabilities_is_recorded_one_by_one(params: dict[str, Any]) -> None:
    stretches = ContinuingSequences().divide(plan_of(sequence_of([1], **params), sequence_of([2])), [5, 5])
    assert (going_on(stretches), others(stretches)) == ([2], [(1, [0])])


def test_a_sequence_with_a_grammar_is_recorded_one_by_one() -> None:
    sequence = sequence_of([1])
    sequence.matcher = OutputMatcher()  # type: ignore[assignment]
    assert going_on(ContinuingSequences().divide(plan_of(sequence), [5])) == []


def test_rows_are_those_of_the_step_beside_drafts_and_pieces_of_prompts() -> None:
    plan = plan_of(*(sequence_of([number]) for number in (1, 2, 3, 4)), num_sampled=[2, 3, 0, 1])
    stretches = ContinuingSequences().divide(plan, [5, 6, 6, STOP, 6, 8])
    assert [token for stretch in stretches for _, token in stretch.going_on] == [8]
    assert others(stretches) == [(1, [0, 1]), (2, [2, 3, 4])]


def test_limits_follow_when_the_sequences_of_a_step_change() -> None:
    continuing = ContinuingSequences()
    first, second = sequence_of([1], max_tokens=1), sequence_of([2], max_tokens=2)
    assert going_on(continuing.divide(plan_of(first), [5])) == []
    assert going_on(continuing.divide(plan_of(second), [5])) == [2]
    assert going_on(continuing.divide(plan_of(second, first), [5, 5])) == [2]
