"""Tests of the inputs and outputs of a decode step's CUDA graph, with a plain function instead of the capture."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.loop.core import Engine
from engine.models.decode_graphs import Compute, DecodeGraphs, graph_sizes
from engine.models.decoder import Decoder
from tests.engine.builders import make_engine, run_all, runner_of
from tests.engine.tiny_models import TinyModel, TinyModels


class Capture:
    """Count how often each captured computation is repeated."""

    def __init__(self) -> None:
        self.runs: list[int] = []

    def __call__(self, compute: Compute) -> Compute:
        index = len(self.runs)
        self.runs.append(0)

        def replay() -> tuple[torch.Tensor, torch.Tensor]:
            self.runs[index] += 1
            return compute()

        return replay


def capture(engine: Engine, *, max_num_seqs: int) -> Capture:
    """Let the engine's decodes of up to that many sequences go through graphs."""
    runner, captured = runner_of(engine), Capture()
    model = runner._model
    assert isinstance(model, Decoder)
    model._graphs = DecodeGraphs(
        lambda step: model.forward(step, runner._cache),
        max_num_seqs=max_num_seqs,
        max_context_len=engine.info.max_model_len,
        block_size=engine.info.block_size,
        device=runner.device,
        capture=captured,
    )
    return captured


def test_sizes_reach_the_largest_and_leave_few_rows_empty() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(7) == [1, 2, 4, 7]
    assert graph_sizes(300)[-3:] == [256, 288, 300]
    sizes = np.array(graph_sizes(1024))
    used = np.arange(16, 1025)
    fitting = sizes[np.searchsorted(sizes, used)]
    assert ((fitting - used) / fitting).max() < 0.3
    assert ((fitting - used) / fitting)[used > 64].max() < 0.11


@pytest.mark.parametrize("name", ["llama-gqa", "mistral-window", "qwen3-layer-types"])
@pytest.mark.parametrize("overlap", [False, True])
def test_steps_filled_up_to_a_captured_size_give_the_same_tokens(
    name: str, tiny_models: TinyModels, *, overlap: bool
) -> None:
    model = tiny_models[name]
    engine = make_engine(model, overlap=overlap, max_num_seqs=20, num_kv_blocks=120, block_size=4)
    captured = capture(engine, max_num_seqs=12)
    runner_of(engine).fill_cache(float("nan"))
    assert run_all(engine, model) == model.expected
    assert sum(num_runs > 0 for num_runs in captured.runs) > 3
    assert sum(captured.runs) < engine.stats().scheduler.num_steps, "prompts and large batches are not captured"


def test_rows_that_fill_a_step_up_write_nothing(tiny_models: TinyModels) -> None:
    model = tiny_models["llama-gqa"]
    few = TinyModel(model.path, model.prompts[:3], [9, 20, 14], [])
    written = []
    for has_graphs in (False, True):
        engine = make_engine(model, num_kv_blocks=60)
        if has_graphs:
            captured = capture(engine, max_num_seqs=16)
            assert len(captured.runs) == len(graph_sizes(16))
        runner_of(engine).fill_cache(7.0)
        run_all(engine, few)
        written.append([(part != 7.0).any(dim=3).any(dim=1) for layer in runner_of(engine)._cache for part in layer])
    assert sum(captured.runs) == 19  # one prompt step, then decodes of 3, 2 and 1 sequences: the longest has 20 tokens
    assert all(torch.equal(plain, filled_up) for plain, filled_up in zip(*written, strict=True))
