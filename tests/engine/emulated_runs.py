"""The engine on an emulated CUDA device, kernels in Triton's interpreter; test_emulated_cuda.py runs this on its own.

TRITON_INTERPRET must be set before triton is imported. Models and requests are tiny: a tile takes milliseconds here.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from engine import LLM
from engine.device.transfer import upload_together
from engine.models.decode_graphs import Compute
from engine.models.decoder import Decoder
from engine.models.step_model import KvCache, StepTensors
from engine.params import SamplingParams
from engine.scheduling.swap import SwapRule
from engine.structured import StructuredOutput
from kernels.grouped_linear import GroupedLinear
from kernels.grouped_weight import Layout, filled
from tests.engine.broken_models import POISON, poisoned
from tests.engine.builders import KINDS, make_engine, new_request, run_all, run_to_end, runner_of
from tests.engine.quantized.checkpoints import FORMATS, quantize
from tests.engine.tiny_models import THROUGH_TRANSFORMERS, VARIANTS, TinyModel, certain_answers, save_tiny
from tests.kernels.patched_language import language_patched_once

from .emulated_cuda import DEVICE, MEMORY_BYTES, PEAK_BYTES, USED_BYTES, EmulatedCuda, emulated_cuda, is_on_device

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")

SMALL = {"device": "cuda", "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 12, "num_kv_blocks": 60}
BROKEN_WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0, "logprobs": 2},
    {"seed": 3, "top_k": 9, "top_p": 0.9},
    {"seed": 4, "frequency_penalty": 0.7, "bad_words_token_ids": [(5,)]},
]
NUM_LAYERS = 2  # a third would only do again what the second does
PROMPT_LENGTHS = (4, 5, 6, 8, 9)  # with six tokens more, three outgrow Mistral's window of 11


@pytest.fixture(scope="module", autouse=True)
def _language() -> Iterator[None]:
    with language_patched_once():
        yield


class Repeater:
    """Stands for `CudaCapture`: repeats a computation by running it again."""

    def __call__(self, compute: Compute) -> Compute:
        compute()
        return compute


@pytest.fixture
def device() -> Iterator[EmulatedCuda]:
    with emulated_cuda() as device, mock.patch("engine.models.decoder.CudaCapture", Repeater):
        yield device


def make_small(path: Path, settings: dict[str, Any], *, num_layers: int = NUM_LAYERS) -> TinyModel:
    """Make a small model and ask transformers. Never on the device: there each of torch's functions takes longer."""
    return asked(path, save_tiny(path, {**settings, "num_hidden_layers": num_layers}))


def asked(path: Path, model: Any) -> TinyModel:
    """Return the model of a folder with transformers' answers."""
    numbers = random.Random(3)
    prompts = [[numbers.randrange(3, 256) for _ in range(length)] for length in PROMPT_LENGTHS]
    expected = certain_answers(model, prompts, [6] * len(prompts))
    return TinyModel(path, prompts, [len(tokens) for tokens in expected], expected)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_small(tmp_path_factory.mktemp("llama"), VARIANTS["llama-gqa"])


@pytest.fixture(scope="module")
def flat_llama(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Of one layer, for what comes after the layers."""
    return make_small(tmp_path_factory.mktemp("flat"), VARIANTS["llama-gqa"], num_layers=1)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_small(tmp_path_factory.mktemp("qwen3"), VARIANTS["qwen3"])


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_small(tmp_path_factory.mktemp("mistral"), VARIANTS["mistral-window"])


@pytest.fixture(scope="module")
def packed_llama(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Of 4-bit weights with zeros, which stay packed."""
    path = tmp_path_factory.mktemp("packed")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    save_tiny(path, {**VARIANTS["llama-gqa"], **sizes, "head_dim": 16, "num_hidden_layers": 1})
    return asked(path, quantize(path, FORMATS["awq"]))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_small(tmp_path_factory.mktemp("gpt2"), THROUGH_TRANSFORMERS["gpt2"])


def test_the_device_gives_the_tokens_of_transformers(qwen3: TinyModel, device: EmulatedCuda) -> None:
    engine = make_engine(qwen3, **SMALL)
    device.waits.clear()
    assert run_all(engine, qwen3) == qwen3.expected
    assert (engine.info.device, engine.info.num_kv_blocks) == ("cuda", 60)
    assert device.waits == [], "only reading the samples may make the host wait"


def test_packed_weights_are_multiplied_on_the_device_as_they_are(packed_llama: TinyModel, device: EmulatedCuda) -> None:
    engine = make_engine(packed_llama, **SMALL)
    decoder = runner_of(engine)._model
    assert isinstance(decoder, Decoder)
    assert {type(linear) for layer in decoder._layers for linear in layer.linears} == {GroupedLinear}
    device.waits.clear()
    assert run_all(engine, packed_llama) == packed_llama.expected
    assert device.waits == []


def test_rows_of_a_packed_weight_are_read_without_a_wait(device: EmulatedCuda) -> None:
    weight, ids = filled(Layout(bits=4, scale_bytes=2, has_minima=True), (9, 64)), torch.tensor([8, 0, 8])
    linear = GroupedLinear(weight.to(DEVICE), None, dtype=torch.float16)
    on_device = ids.to(DEVICE)
    device.waits.clear()
    rows = linear.rows(on_device)
    assert is_on_device(rows)
    assert not linear.is_compiled
    assert device.waits == []
    assert torch.equal(rows.cpu(), weight.widened()[ids].half())


def test_without_overlap_and_graphs_it_does_too(mistral: TinyModel, device: EmulatedCuda) -> None:
    engine = make_engine(mistral, **SMALL, overlap=False, enforce_eager=True)
    assert run_all(engine, mistral) == mistral.expected


def test_every_kind_of_request_is_told_the_same_as_on_a_cpu(flat_llama: TinyModel, device: EmulatedCuda) -> None:
    found = []
    for name in ("cpu", "cuda"):
        engine = make_engine(
            flat_llama, **{**SMALL, "device": name, "num_kv_blocks": 6, "admission": "prompt", "policy": "fcfs"}
        )
        for request_id, kind in enumerate(KINDS):
            params = SamplingParams(**{"max_tokens": 4, "ignore_eos": True, **kind})
            engine.add(new_request(request_id, flat_llama.prompts[request_id % 5], params=params))
        device.waits.clear()
        reported = run_to_end(engine)
        found.append({child: (delta.token_ids, delta.finish_reason, delta.error) for child, delta in reported.items()})
    assert found[0] == found[1]
    assert engine.stats().scheduler.num_preemptions > 0
    assert device.waits == []


def test_swapped_blocks_come_back(llama: TinyModel, device: EmulatedCuda, monkeypatch: Any) -> None:
    monkeypatch.setattr(SwapRule, "prefers_swap", lambda self, **sizes: True)
    settings = {**SMALL, "num_kv_blocks": 6, "admission": "prompt", "swap_space_gib": 0.001}
    engine = make_engine(llama, **settings, enable_prefix_caching=False)
    assert run_all(engine, llama) == llama.expected
    assert engine.stats().scheduler.num_swaps > 0


def test_transformers_own_code_runs_on_the_device_too(gpt2: TinyModel, device: EmulatedCuda) -> None:
    two = gpt2.few(2)
    assert run_all(make_engine(two, **SMALL), two) == two.expected


def test_grammars_hold_on_the_device(grammar_model: Path, device: EmulatedCuda) -> None:
    llm = LLM(grammar_model, dtype="float32", **SMALL)
    params = [SamplingParams(seed=seed, structured=StructuredOutput(regex="[0-9]{3}x")) for seed in range(2)]
    params.append(SamplingParams(seed=2, max_tokens=2, ignore_eos=True))
    device.waits.clear()
    first, second, _ = (output.outputs[0].text for output in llm.generate(["abc"] * 3, params))
    assert re.fullmatch("[0-9]{3}x", first)
    assert re.fullmatch("[0-9]{3}x", second)
    assert device.waits == []


def test_broken_rows_are_found_on_the_device_and_nobody_waits_for_it(
    flat_llama: TinyModel, device: EmulatedCuda, tmp_path: Path
) -> None:
    engine = make_engine(poisoned(flat_llama, tmp_path / "model"), **SMALL)
    for request_id, kind in enumerate(BROKEN_WAYS):
        params = SamplingParams(**{"max_tokens": 3, "ignore_eos": True, **kind})
        engine.add(new_request(request_id, [7, POISON, 9], params=params))
    for request_id in (10, 11):
        engine.add(new_request(request_id, [7, 8, 9], params=SamplingParams(max_tokens=3, ignore_eos=True, seed=1)))
    engine.add(new_request(12, [7, 8], params=SamplingParams(max_tokens=4, allowed_token_ids=[POISON])))
    device.waits.clear()
    found = run_to_end(engine)
    assert [found[request_id, 0].is_broken for request_id in range(len(BROKEN_WAYS))] == [True] * len(BROKEN_WAYS)
    assert [len(found[request_id, 0].token_ids) for request_id in (10, 11, 12)] == [3, 3, 1]
    assert (found[10, 0].is_broken, found[12, 0].is_broken) == (False, True)
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


def test_the_profiled_step_is_a_full_one_and_the_pool_takes_what_it_leaves(
    llama: TinyModel, device: EmulatedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    forward = Decoder.forward

    def noted(decoder: Decoder, step: StepTensors, cache: KvCache, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        sizes.append(step.token_ids.shape[0])
        return forward(decoder, step, cache, rows)

    monkeypatch.setattr(Decoder, "forward", noted)
    engine = make_engine(llama, **{**SMALL, "num_kv_blocks": None, "gpu_memory_share": 0.1, "max_model_len": 10})
    assert max(sizes) == SMALL["max_num_batched_tokens"], "a step may hold more tokens than one sequence"
    free = 0.1 * MEMORY_BYTES - (PEAK_BYTES - USED_BYTES)
    block_bytes = 2 * NUM_LAYERS * 2 * 8 * 4 * 4  # keys and values, layers, heads, head size, tokens, fp32
    assert engine.info.num_kv_blocks == free // block_bytes < 12, "twelve are all that four sequences of ten tokens use"
