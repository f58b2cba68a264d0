"""Tests of aborting one child of a request: the others continue unaffected, and nothing is left behind."""

from __future__ import annotations

import pytest

from engine.loop.core import Engine
from engine.outputs import FinishReason
from engine.params import SamplingParams
from tests.engine.builders import make_engine, new_request
from tests.engine.simulated_engine import SimulatedEngine, expected_output
from tests.engine.tiny_models import TinyModels


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5])
@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_the_other_children_finish_whatever_the_child_was_doing(
    *, num_steps: int, index: int, enable_prefix_caching: bool
) -> None:
    engine = SimulatedEngine(max_num_batched_tokens=8, max_num_seqs=4, enable_prefix_caching=enable_prefix_caching)
    prompt = list(range(10))
    request_id = engine.add(prompt, 12, n=3)
    for _ in range(num_steps):
        engine.step()
    (dropped,) = engine.scheduler.abort(request_id, index=index)
    assert dropped.index == index
    assert engine.scheduler.abort(request_id, index=index) == []
    engine.scheduler.check_integrity()
    engine.run()
    outputs = {child.index: child.token_ids[10:] for child in engine.finished[request_id]}
    assert outputs == {other: expected_output(prompt, 12) for other in {0, 1, 2} - {index}}
    assert engine.scheduler.pool.num_used == 0


def run(engine: Engine) -> dict[int, tuple[list[int], FinishReason | None]]:
    found: dict[int, tuple[list[int], FinishReason | None]] = {}
    while engine.has_work:
        for delta in (*engine.step(), *engine.release()):
            tokens, _ = found.get(delta.index, ([], None))
            found[delta.index] = ([*tokens, *delta.token_ids], delta.finish_reason)
            if delta.index == 1 and len(found[1][0]) == 3 and delta.finish_reason is None:
                engine.abort_children([(0, 1), (0, 9), (5, 0)])
    return found


def test_a_child_reports_its_end_and_takes_no_more_tokens(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    params = SamplingParams(n=3, seed=4, max_tokens=12, ignore_eos=True)
    engine = make_engine(model)
    engine.add(new_request(0, model.prompts[0], params=params))
    found = run(engine)
    assert (len(found[1][0]), found[1][1]) == (3, FinishReason.ABORT)
    for index in (0, 2):
        alone = make_engine(model)
        alone.add(
            new_request(0, model.prompts[0], params=SamplingParams(seed=4 + index, max_tokens=12, ignore_eos=True))
        )
        assert found[index] == run(alone)[0]
    assert engine.stats().requests.num_finished == 3
    assert engine.stats().requests.num_output_tokens == 12 + 3 + 12
