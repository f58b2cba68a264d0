"""Tests of drafts: guessed tokens that one step computes together and keeps as far as they match its samples."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import Admission
from engine.params import SamplingParams
from tests.engine.builders import no_guess, run_with_drafts
from tests.engine.simulated_engine import SimulatedEngine
from tests.engine.tiny_models import TinyModels

GREEDY = SamplingParams(temperature=0.0, max_tokens=30)
RANDOM = SamplingParams(seed=5, max_tokens=30)


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0.0, max_tokens=30), SamplingParams(seed=5, max_tokens=30)]
)
def test_right_drafts_give_the_same_tokens_in_fewer_steps(params: SamplingParams, tiny_models: TinyModels) -> None:
    model = tiny_models["qwen3"]
    plain, plain_steps = run_with_drafts(model, params, no_guess)
    whole = [*model.prompts[0], *plain]
    tokens, steps = run_with_drafts(model, params, lambda known, left: whole[len(known) : len(known) + 5])
    assert tokens == plain
    assert steps <= plain_steps // 4


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0.0, max_tokens=30), SamplingParams(seed=5, max_tokens=30)]
)
@pytest.mark.parametrize("block_size", [1, 16])
def test_drafts_that_go_wrong_change_no_token(params: SamplingParams, block_size: int, tiny_models: TinyModels) -> None:
    model = tiny_models["mistral-window"]
    plain, _ = run_with_drafts(model, params, no_guess, block_size=block_size)
    whole = [*model.prompts[0], *plain]

    def half_right(known: list[int], left: int) -> list[int]:
        right = whole[len(known) : len(known) + len(known) % 4]
        return [*right, 3, 4, 5]

    tokens, _ = run_with_drafts(model, params, half_right, block_size=block_size)
    assert tokens == plain


def test_a_step_without_budget_for_all_drafts_takes_the_first_ones(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    params = SamplingParams(temperature=0.0, max_tokens=30)
    plain, plain_steps = run_with_drafts(model, params, no_guess, max_num_batched_tokens=4, max_num_seqs=1)
    whole = [*model.prompts[0], *plain]
    tokens, steps = run_with_drafts(
        model,
        params,
        lambda known, left: whole[len(known) : len(known) + 20],
        max_num_batched_tokens=4,
        max_num_seqs=1,
    )
    assert tokens == plain
    assert steps < plain_steps


def decoding(num_seqs: int, *, budget: int, max_num_seqs: int = 8, **settings: Any) -> SimulatedEngine:
    """Return an engine whose sequences have computed their prompts and sampled a first token."""
    engine = SimulatedEngine(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, **settings)
    for index in range(num_seqs):
        engine.add([10 * index + 1, 2, 3], 40)
    for _ in range(3):
        engine.step()
    assert [one.num_output_tokens > 0 for one in engine.scheduler.running_sequences()] == [True] * num_seqs
    return engine


def draft_for_all(engine: SimulatedEngine, count: int) -> None:
    for sequence in engine.scheduler.running_sequences():
        if sequence.has_prompt_computed:
            sequence.draft_token_ids = [5] * count


def test_drafts_never_take_the_token_of_a_later_sequence() -> None:
    engine = decoding(4, budget=10)
    draft_for_all(engine, 20)
    plan = engine.scheduler.schedule()
    assert plan.counts.tolist() == [7, 1, 1, 1]
    assert plan.num_sampled.tolist() == [7, 1, 1, 1]


def test_drafts_leave_a_running_prompt_all_it_can_compute() -> None:
    engine = decoding(2, budget=12)
    engine.add(list(range(100, 125)), 5)
    draft_for_all(engine, 20)
    engine.step()
    draft_for_all(engine, 20)
    plan = engine.scheduler.schedule()
    assert plan.counts.tolist() == [1, 1, 10]
    assert plan.num_sampled.tolist() == [1, 1, 0]


def test_drafts_leave_half_of_what_is_left_to_those_that_wait_to_start() -> None:
    engine = decoding(2, budget=12)
    engine.add(list(range(100, 120)), 5)
    draft_for_all(engine, 20)
    plan = engine.scheduler.schedule()
    assert plan.counts.tolist() == [1 + 5, 1, 5]


def test_drafts_take_everything_when_those_that_wait_have_no_seat() -> None:
    engine = decoding(2, budget=12, max_num_seqs=2)
    engine.add(list(range(100, 120)), 5)
    draft_for_all(engine, 20)
    assert engine.scheduler.schedule().counts.tolist() == [1 + 10, 1]


def test_drafts_and_those_that_start_sample_no_more_rows_than_a_step_may() -> None:
    engine = decoding(2, budget=2048, max_num_seqs=256, num_blocks=4000)
    limit = engine.scheduler.config.max_sampled_rows
    for index in range(254):
        engine.add([index % 50, 3, index], 4)
    draft_for_all(engine, engine.scheduler.draft_room() // 2)
    plan = engine.scheduler.schedule()
    assert sum(plan.num_sampled) == limit == 256
    assert 2 < len(plan.sequences) < limit
    engine.scheduler.advance(plan)
    assert len(engine.scheduler.schedule().sequences) == 256


def test_drafts_preempt_nobody() -> None:
    engine = decoding(3, budget=32, num_blocks=7, admission=Admission.PROMPT)
    draft_for_all(engine, 8)
    plan = engine.scheduler.schedule()
    assert plan.counts.tolist() == [1, 1, 1]
    assert engine.scheduler.counters.num_preemptions == 0
