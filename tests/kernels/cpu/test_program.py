"""Tests of recorded kernel calls, run as one program, against the same ops called one by one."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.cpu.runtime import program
from kernels.cpu.runtime.launch import record
from kernels.cpu.runtime.program import CpuProgram
from kernels.paged_attention import paged_attention
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.silu_mul import silu_mul
from kernels.write_kv import write_kv

pytestmark = pytest.mark.skipif(not program.can_run(), reason="this system has no sched_yield")

LAYERS, ROWS, DIM = 5, 70, 96


def layer(x: Tensor, residual: Tensor, weights: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    normed, residual = add_rms_norm(x, residual, weights[0], eps=1e-5)
    rms_norm(normed[:0], weights[1], eps=1e-6)  # a call without a task
    return rms_norm(normed, weights[1], eps=1e-6), residual


def addresses(weights: list[tuple[Tensor, Tensor]]) -> Any:
    return np.array([[tensor.data_ptr() for tensor in pair] for pair in weights], dtype=np.int64)


def run_all(weights: list[tuple[Tensor, Tensor]], x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    program = CpuProgram(LAYERS)
    with record() as recording:
        out, total = layer(x, residual, weights[0])
    renamed = {out.data_ptr(): x.data_ptr(), total.data_ptr(): residual.data_ptr()}
    program.place(range(LAYERS), recording, own=addresses(weights), renamed=renamed)
    assert not program.run()
    return x, residual


@pytest.fixture(params=[1, 2, 7])
def num_threads(request: pytest.FixtureRequest) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("num_threads")
@pytest.mark.parametrize("rows", [1, ROWS, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_layer_runs_in_order_with_its_own_weights(rows: int, dtype: torch.dtype) -> None:
    weights = [(torch.rand(DIM).to(dtype), torch.rand(DIM).to(dtype)) for _ in range(LAYERS)]
    x, residual = torch.randn(rows, DIM).to(dtype), torch.randn(rows, DIM).to(dtype)
    expected = x, residual
    for pair in weights:
        expected = layer(*expected, pair)
    for _ in range(20):
        actual = run_all(weights, x.clone(), residual.clone())
        assert torch.equal(actual[0], expected[0])
        assert torch.equal(actual[1], expected[1])


def test_layers_of_two_kinds_share_a_program() -> None:
    x = torch.full((3, DIM), 2.0)
    weights = [torch.full((DIM,), float(index + 1)) for index in range(4)]
    program, recordings, own = CpuProgram(4), [], np.array([[weight.data_ptr()] for weight in weights])
    for layers, eps in (([0, 2], 0.0), ([1, 3], 15.0)):
        with record() as recording:
            out = rms_norm(x, weights[layers[0]], eps=eps)
        program.place(layers, recording, own=own, renamed={out.data_ptr(): x.data_ptr()})
        recordings.append(recording)
    assert not program.run()
    # 2 → 1 · 1 → (1 / √16) · 2 → 1 · 3 → (3 / √24) · 4
    torch.testing.assert_close(x, torch.full((3, DIM), 12 / 24**0.5))


def test_a_size_that_equals_an_address_is_no_address() -> None:
    x, weights, program = torch.full((3, DIM), 2.0), [torch.ones(DIM), torch.full((DIM,), 3.0)], CpuProgram(2)
    own = np.array([[weights[0].data_ptr(), DIM], [weights[1].data_ptr(), 1]])
    with record() as recording:
        out = rms_norm(x, weights[0], eps=0.0)
    program.place(range(2), recording, own=own, renamed={out.data_ptr(): x.data_ptr(), len(x): 1})
    assert not program.run()
    assert x.eq(3.0).all()


def test_recording_runs_nothing_and_keeps_what_is_to_be_written() -> None:
    gate_up = torch.randn(4, 8)
    with record() as recording:
        out = silu_mul(gate_up)
        out.fill_(7.0)
    assert out.eq(7.0).all()
    assert [call.num_tasks for call in recording.calls] == [4]
    assert any(kept is out for kept in recording.outputs)


def test_another_thread_is_not_recorded() -> None:
    weight, results = torch.ones(4), []
    with record() as recording:
        thread = threading.Thread(target=lambda: results.append(rms_norm(torch.ones(2, 4), weight, eps=0.0)))
        thread.start()
        thread.join()
    assert not recording.calls
    assert results[0].eq(1.0).all()


def test_an_index_out_of_range_is_reported_and_touches_nothing(layer_case: Any, attention_case: Any) -> None:
    case, program = layer_case([0, 99]), CpuProgram(1)
    with record() as recording:
        write_kv(case.key, case.value, case.cache, case.step.slots)
    program.place([0], recording, own=np.zeros((1, 0), dtype=np.int64), renamed={})
    assert program.run()
    assert case.cache.keys[1:].isnan().all()
    batch = attention_case([(1, 5)])
    batch.step.block_tables[0, 0] = 1 << 20
    cache = batch.as_written()  # held until the program has run: the recording keeps only outputs
    with record() as recording:
        paged_attention(batch.query, cache, batch.step, batch.rule)
    program.place([0], recording, own=np.zeros((1, 0), dtype=np.int64), renamed={})
    assert program.run()


def test_a_program_forgets_the_fault_of_an_earlier_run(layer_case: Any) -> None:
    program = CpuProgram(1)
    for slots, is_wrong in (([0, 99], True), ([0, 1], False)):
        case = layer_case(slots)
        with record() as recording:
            write_kv(case.key, case.value, case.cache, case.step.slots)
        program.place([0], recording, own=np.zeros((1, 0), dtype=np.int64), renamed={})
        assert program.run() is is_wrong
