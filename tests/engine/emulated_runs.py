"""The engine on an emulated CUDA device, kernels in Triton's interpreter; test_emulated_cuda.py runs this on its own.

TRITON_INTERPRET must be set before triton is imported. Models and requests are tiny: a tile takes milliseconds here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from torch import Tensor

from engine import LLM
from engine.device.transfer import upload_together
from engine.models.decode_graphs import Compute
from engine.models.decoder import Decoder
from engine.models.step_model import KvCache, StepTensors
from engine.params import SamplingParams
from engine.scheduling.swap import SwapRule
from engine.structured import StructuredOutput
from tests.engine.builders import KINDS, make_engine, new_request, run_all, run_to_end
from tests.engine.tiny_models import THROUGH_TRANSFORMERS, TinyModel, TinyModels, answered

from .emulated_cuda import DEVICE, MEMORY_BYTES, PEAK_BYTES, USED_BYTES, EmulatedCuda, emulated_cuda, is_on_device

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")

SMALL = {"device": "cuda", "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 24, "num_kv_blocks": 60}


class Repeater:
    """Stands for `CudaCapture`: repeats a computation by running it again."""

    def __call__(self, compute: Compute) -> Compute:
        compute()
        return compute


@pytest.fixture
def device() -> Iterator[EmulatedCuda]:
    with emulated_cuda() as device, mock.patch("engine.models.decoder.CudaCapture", Repeater):
        yield device


def few(model: TinyModel, count: int = 5) -> TinyModel:
    order = sorted(range(len(model.prompts)), key=lambda index: len(model.prompts[index]))[3 : 3 + count]
    return TinyModel(
        model.path,
        [model.prompts[index] for index in order],
        [min(6, model.max_tokens[index]) for index in order],
        [model.expected[index][:6] for index in order],
    )


def test_the_device_gives_the_tokens_of_transformers(tiny_models: TinyModels, device: EmulatedCuda) -> None:
    model = few(tiny_models["qwen3"])
    engine = make_engine(model, **SMALL)
    device.waits.clear()
    assert run_all(engine, model) == model.expected
    assert (engine.info.device, engine.info.num_kv_blocks) == ("cuda", 60)
    assert device.waits == [], "only reading the samples may make the host wait"


def test_without_overlap_and_graphs_it_does_too(tiny_models: TinyModels, device: EmulatedCuda) -> None:
    model = few(tiny_models["mistral-window"], 3)
    assert run_all(make_engine(model, **SMALL, overlap=False, enforce_eager=True), model) == model.expected


def test_every_kind_of_request_is_told_the_same_as_on_a_cpu(tiny_models: TinyModels, device: EmulatedCuda) -> None:
    model = few(tiny_models["llama-gqa"])
    found = []
    for name in ("cpu", "cuda"):
        engine = make_engine(model, **{**SMALL, "device": name, "num_kv_blocks": 6, "admission": "prompt"})
        for request_id, kind in enumerate(KINDS):
            params = SamplingParams(**{"max_tokens": 4, "ignore_eos": True, **kind})
            engine.add(new_request(request_id, model.prompts[request_id % 5], params=params))
        device.waits.clear()
        reported = run_to_end(engine)
        found.append({child: (delta.token_ids, delta.finish_reason, delta.error) for child, delta in reported.items()})
    assert found[0] == found[1]
    assert engine.stats().scheduler.num_preemptions > 0
    assert device.waits == []


def test_swapped_blocks_come_back(tiny_models: TinyModels, device: EmulatedCuda, monkeypatch: Any) -> None:
    monkeypatch.setattr(SwapRule, "prefers_swap", lambda self, **sizes: True)
    model = few(tiny_models["llama-gqa"])
    settings = {**SMALL, "num_kv_blocks": 6, "admission": "prompt", "swap_space_gib": 0.001}
    engine = make_engine(model, **settings, enable_prefix_caching=False)
    assert run_all(engine, model) == model.expected
    assert engine.stats().scheduler.num_swaps > 0


def test_transformers_own_code_runs_on_the_device_too(tmp_path: Path, device: EmulatedCuda) -> None:
    model = few(answered(tmp_path, THROUGH_TRANSFORMERS["gpt2"]), 2)
    assert run_all(make_engine(model, **SMALL), model) == model.expected


def test_grammars_hold_on_the_device(grammar_model: Path, device: EmulatedCuda) -> None:
    llm = LLM(grammar_model, dtype="float32", **SMALL)
    params = [SamplingParams(seed=seed, structured=StructuredOutput(regex="[0-9]{3}x")) for seed in range(2)]
    params.append(SamplingParams(seed=2, max_tokens=2, ignore_eos=True))
    device.waits.clear()
    first, second, _ = (output.outputs[0].text for output in llm.generate(["abc"] * 3, params))
    assert re.fullmatch("[0-9]{3}x", first)
    assert re.fullmatch("[0-9]{3}x", second)
    assert device.waits == []


def test_arrays_that_travel_together_arrive_whole_and_aligned(device: EmulatedCuda) -> None:
    arrays: list[npt.NDArray[Any]] = [
        np.arange(3),
        np.arange(10, dtype=np.int32).reshape(2, 5)[:, 1:4],
        np.zeros(0, dtype=np.int64),
        np.ones(1),
    ]
    found = upload_together(arrays, DEVICE)
    assert device.waits == []
    assert all(is_on_device(tensor) for tensor in found)
    assert [tensor.tolist() for tensor in found] == [array.tolist() for array in arrays]
    assert all(tensor.storage_offset() * tensor.element_size() % 16 == 0 for tensor in found)


def test_the_profiled_step_is_a_full_one(
    tiny_models: TinyModels, device: EmulatedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    forward = Decoder.forward

    def noted(decoder: Decoder, step: StepTensors, cache: KvCache) -> tuple[Tensor, Tensor]:
        sizes.append(step.token_ids.shape[0])
        return forward(decoder, step, cache)

    monkeypatch.setattr(Decoder, "forward", noted)
    make_engine(tiny_models["llama-gqa"], **SMALL, max_model_len=10)
    assert max(sizes) == SMALL["max_num_batched_tokens"], "a step may hold more tokens than one sequence"


def test_the_pool_takes_what_a_profiled_step_leaves(tiny_models: TinyModels, device: EmulatedCuda) -> None:
    model = few(tiny_models["llama-gqa"], 1)
    engine = make_engine(model, **{**SMALL, "num_kv_blocks": None, "gpu_memory_share": 0.75})
    free = 0.75 * MEMORY_BYTES - (PEAK_BYTES - USED_BYTES)
    block_bytes = 2 * 3 * 2 * 8 * 4 * 4  # keys and values, layers, heads, head size, tokens, fp32
    assert engine.info.num_kv_blocks == free // block_bytes
