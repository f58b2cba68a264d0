"""Tests that tokens which end nothing are held until they are due, and that none is lost or reported twice."""

from __future__ import annotations

import pytest

from engine.loop.core import Engine
from engine.outputs import FinishReason
from tests.engine.builders import greedy, make_engine, new_request
from tests.engine.tiny_models import TinyModel, TinyModels


@pytest.fixture(scope="module")
def model(tiny_models: TinyModels) -> TinyModel:
    return tiny_models["llama-gqa"]


def steps(engine: Engine, count: int) -> list[list[int]]:
    """Run so many steps; return how many tokens each reports, delta by delta."""
    return [[len(delta.token_ids) for delta in engine.step()] for _ in range(count)]


def test_tokens_come_with_the_end_of_their_sequence(model: TinyModel) -> None:
    engine = make_engine(model)
    engine.add(new_request(1, model.prompts[0], params=greedy(20)))
    assert steps(engine, 20) == [*[[]] * 19, [20]]


def test_held_tokens_are_released_once_and_the_end_brings_the_rest(model: TinyModel) -> None:
    engine = make_engine(model)
    engine.add(new_request(1, model.prompts[0], params=greedy(40)))
    steps(engine, 18)
    (first,), nothing = engine.release(), engine.release()
    steps(engine, 21)
    (last,) = engine.step()
    assert (len(first.token_ids), nothing, len(last.token_ids)) == (18, [], 22)
    engine.add(new_request(2, model.prompts[0], params=greedy(40)))
    steps(engine, 39)
    (whole,) = engine.step()
    assert first.token_ids + last.token_ids == whole.token_ids


@pytest.mark.parametrize("overlap", [False, True])
def test_tokens_of_a_request_with_stop_strings_come_one_by_one(model: TinyModel, *, overlap: bool) -> None:
    engine = make_engine(model, overlap=overlap)
    engine.add(new_request(1, model.prompts[0], params=greedy(4, stop=["x"])))
    engine.add(new_request(2, model.prompts[1], params=greedy(4)))
    reported = [[(delta.request_id, len(delta.token_ids)) for delta in engine.step()] for _ in range(4 + overlap)]
    assert [sorted(step) for step in reported[overlap:]] == [[(1, 1)], [(1, 1)], [(1, 1)], [(1, 1), (2, 4)]]


def test_an_abort_brings_what_was_held(model: TinyModel) -> None:
    engine = make_engine(model)
    engine.add(new_request(1, model.prompts[0], params=greedy(20)))
    steps(engine, 5)
    engine.abort([1])
    (delta,) = engine.step()
    assert (len(delta.token_ids), delta.finish_reason) == (5, FinishReason.ABORT)


def test_a_preempted_sequence_keeps_what_it_holds(model: TinyModel) -> None:
    settings = {"num_kv_blocks": 24, "block_size": 4, "admission": "prompt"}
    engine = make_engine(model, **settings)
    for request_id in range(8):
        engine.add(new_request(request_id, model.prompts[request_id], params=greedy(24)))
    tokens: dict[int, int] = dict.fromkeys(range(8), 0)
    while engine.has_work:
        for delta in engine.step():
            tokens[delta.request_id] += len(delta.token_ids)
    assert engine.stats().scheduler.num_preemptions > 0
    assert set(tokens.values()) == {24}
