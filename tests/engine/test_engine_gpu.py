"""Tests of the engine on a real CUDA device: graphs and overlap against the CPU. Run with `-m gpu`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.params import SamplingParams
from tests.engine.broken_models import POISON, poisoned
from tests.engine.builders import KINDS, add_all, make_engine, new_request, run_all, run_to_end, runner_of
from tests.engine.tiny_models import TinyModel, TinyModels

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "eager": {"enforce_eager": True},
    "waiting": {"overlap": False},
    "scarce": {"num_kv_blocks": 24, "block_size": 4, "admission": "prompt"},
    "swapped": {"num_kv_blocks": 24, "block_size": 4, "admission": "prompt", "swap_space_gib": 0.01},
}


@pytest.fixture
def model(tiny_models: TinyModels) -> TinyModel:
    return tiny_models["llama-gqa"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["llama-gqa", "mistral-window", "qwen2", "qwen3"])
def test_greedy_tokens_equal_transformers(name: str, mode: str, tiny_models: TinyModels) -> None:
    model = tiny_models[name]
    engine = make_engine(model, device="cuda", **MODES[mode])
    runner_of(engine).fill_cache(float("nan"))
    assert run_all(engine, model) == model.expected


@pytest.mark.parametrize("mode", MODES)
def test_every_kind_of_request_is_told_the_same_as_on_a_cpu(mode: str, model: TinyModel) -> None:
    reported = []
    for device in ("cpu", "cuda"):
        engine = make_engine(model, **{**MODES[mode], "device": device})
        add_all(engine, model)
        reported.append({child: (delta.token_ids, delta.finish_reason) for child, delta in run_to_end(engine).items()})
    assert reported[0] == reported[1]


def test_nothing_waits_but_reading(model: TinyModel) -> None:
    engine = make_engine(model, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert run_all(engine, model) == model.expected
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_requests_break_as_on_a_cpu(mode: str, dtype: str, model: TinyModel, tmp_path: Path) -> None:
    broken = poisoned(model, tmp_path / "model")
    reported = []
    for device in ("cpu", "cuda"):
        engine = make_engine(broken, **{**MODES[mode], "device": device, "dtype": dtype})
        for request_id in range(3 * len(KINDS)):
            params = SamplingParams(**{"max_tokens": 4, "ignore_eos": True, **KINDS[request_id % len(KINDS)]})
            prompt = [7, POISON, 9] if request_id % 3 == 0 else [7, 8, 9, request_id]
            engine.add(new_request(request_id, prompt, params=params))
        reported.append({child: (delta.finish_reason, delta.is_broken) for child, delta in run_to_end(engine).items()})
    assert reported[0] == reported[1]
    assert {child[0] % 3 for child, (_, is_broken) in reported[0].items() if is_broken} == {0}


def test_bf16_runs_on_every_path(model: TinyModel) -> None:
    for mode in MODES.values():
        engine = make_engine(model, **{**mode, "device": "cuda", "dtype": "bfloat16"})
        add_all(engine, model)
        assert all(delta.finish_reason is not None for delta in run_to_end(engine).values())
