"""Tests that overlap only changes when tokens are reported: steps are planned before the last tokens are known."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.errors import InvalidConfigError
from engine.outputs import FinishReason, TokenDelta
from engine.params import SamplingParams
from engine.scheduling.swap import SwapRule
from tests.engine.builders import add_all, make_engine, new_request, run_to_end
from tests.engine.simulated_engine import SimulatedEngine, expected_output
from tests.engine.tiny_models import TinyModel, TinyModels

pytestmark = pytest.mark.comparison


@pytest.fixture
def model(tiny_models: TinyModels) -> TinyModel:
    return tiny_models["llama-gqa"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 7, "max_num_seqs": 7},
        {"num_kv_blocks": 24, "block_size": 4, "admission": "prompt"},
        {"num_kv_blocks": 24, "block_size": 4, "admission": "prompt", "policy": "fair", "enable_prefix_caching": False},
    ],
    ids=["ample", "in-pieces", "scarce", "scarce-fair"],
)
def test_all_that_is_told_is_the_same(settings: dict[str, Any], model: TinyModel) -> None:
    overlapping, waiting = (make_engine(model, overlap=overlap, **settings) for overlap in (True, False))
    add_all(overlapping, model)
    add_all(waiting, model)
    reported, expected = run_to_end(overlapping), run_to_end(waiting)
    assert reported.keys() == expected.keys()
    for child, delta in expected.items():
        found = reported[child]
        assert (found.token_ids, found.finish_reason) == (delta.token_ids, delta.finish_reason), child
        assert (found.stop_reason, found.error) == (delta.stop_reason, delta.error)
        for mine, theirs in ((found.logprobs, delta.logprobs), (found.prompt_logprobs, delta.prompt_logprobs)):
            assert [entry.logprob for entry in mine or []] == pytest.approx(
                [entry.logprob for entry in theirs or []], abs=1e-3
            )
    reasons = {delta.finish_reason for delta in reported.values()}
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR}
    assert (overlapping.stats().scheduler.num_preemptions > 0) == ("admission" in settings)


def test_tokens_are_told_one_step_later(model: TinyModel) -> None:
    engine = make_engine(model, overlap=True)
    engine.add(new_request(0, [5, 6, 7], params=SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)))
    reported = [[len(delta.token_ids) for delta in (*engine.step(), *engine.release())] for _ in range(5)]
    assert reported == [[], [1], [1], [], [2]]  # without its seat, a sequence reports its tokens when it ends
    assert not engine.has_work


def test_a_seat_is_free_as_soon_as_the_last_token_is_being_drawn(model: TinyModel) -> None:
    engine = make_engine(model, overlap=True, max_num_seqs=1)
    for request_id in range(2):
        engine.add(
            new_request(request_id, [5, 6, 7], params=SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True))
        )
    num_steps = 0
    while engine.has_work:
        engine.step()
        num_steps += 1
    assert num_steps == 2 * 2 + 1  # and one more to read the last token


def test_a_step_whose_sequences_all_fail_still_gives_its_host_blocks_back(
    model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SwapRule, "prefers_swap", lambda self, **sizes: True)
    settings = {"num_kv_blocks": 24, "block_size": 4, "admission": "prompt", "swap_space_gib": 0.001}
    engine = make_engine(model, overlap=True, enable_prefix_caching=False, **settings)
    report, dropped = engine._recorder.report, []

    def report_and_fail(appended: Any) -> list[TokenDelta]:
        """Stand for siblings that end every sequence of the step that was just started."""
        deltas = report(appended)
        plan = engine.scheduler.last_plan
        if plan.copies_in:
            dropped.append(plan)
            for sequence in list(plan.sequences):
                engine.scheduler.abort(sequence.request.request_id)
        return deltas

    monkeypatch.setattr(engine._recorder, "report", report_and_fail)
    add_all(engine, model)
    run_to_end(engine)  # nothing is lost after any of its steps
    assert dropped
    assert engine.scheduler._swap is not None
    assert engine.scheduler._swap.num_free == engine.scheduler._swap.num_blocks


def test_overlap_with_drafts_is_refused(model: TinyModel) -> None:
    with pytest.raises(InvalidConfigError, match=r"overlap is True with speculation .* Leave one of them out"):
        make_engine(model, overlap=True, speculation="ngram")


@pytest.mark.parametrize("seed", range(4))
def test_a_hit_is_as_long_as_without_overlap(seed: int) -> None:
    rng = random.Random(seed)
    stem = [rng.randrange(97) for _ in range(40)]
    prompts = [stem[: rng.randint(1, 40)] + [rng.randrange(97)] * rng.randint(1, 9) for _ in range(12)]
    prompts += [prompt + expected_output(prompt, 9) for prompt in prompts]  # as in the next turn of a conversation
    hits = []
    for overlap in (False, True):
        engine = SimulatedEngine(num_blocks=400, overlap=overlap)
        for prompt in prompts:
            engine.add(prompt, 9)
            engine.run()
        hits.append([engine.finished[index][0].num_cached_tokens for index in range(len(prompts))])
    assert hits[0] == hits[1]
    assert sum(hits[0]) > 0
