"""Run recorded kernel calls one after the other in a single call, all threads together.

A step of a small model is hundreds of short kernels. Starting a thread team and going through Python for each of them
costs more than the work, so a model records the kernels of one layer (`launch.record`), places them here once per layer
with that layer's own addresses, and one team runs the whole table.

Between two calls (stages) no thread waits for another to arrive, only for started tasks to finish: a thread adds itself
to the stage's count of workers before it takes a task, and leaves when no task is left. A late thread finds nothing to
do and moves on. So a thread that lost its core between stages delays no other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from kernels.cpu.runtime.block import COUNTER, FAULT, FIRST_WORD, NUM_TASKS, Block
from kernels.cpu.runtime.launch import CpuKernel, Recording, compile_all
from kernels.cpu.runtime.memory import atomic_load, fetch_add, int64_at

# A stage is 5 cache lines: two words of its own on the first, its kernel's parameter block on the others.
_STAGE_WORDS = 40
_FUNCTION, _WORKERS, _BLOCK = 0, 1, 8
_LOOKS = 20_000  # at the count, some 10 to 20 µs, before a waiting thread yields its core

_TABLE_BLOCK = Block("table* num_stages")
_TABLE_AT = _TABLE_BLOCK.at
_sched_yield = types.ExternalFunction("sched_yield", types.int32())


@intrinsic
def _call(typing_context: Any, function: Any, block: Any) -> Any:
    """Call the compiled kernel at an address with a parameter block."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        prototype = ir.FunctionType(ir.VoidType(), [arguments[1].type])
        builder.call(builder.inttoptr(arguments[0], prototype.as_pointer()), [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.CPointer(types.int64)), generate


def _run_stages(p: Any) -> None:
    table, num_stages = p[_TABLE_AT.table], p[_TABLE_AT.num_stages]
    for stage in range(num_stages):
        start = table + stage * (8 * _STAGE_WORDS)
        words, workers, block = int64_at(start), int64_at(start + 8 * _WORKERS), int64_at(start + 8 * _BLOCK)
        if atomic_load(block) < block[NUM_TASKS]:  # the block starts with its counter
            fetch_add(workers, 1)
            _call(words[_FUNCTION], block)
            fetch_add(workers, -1)
        looks = 0
        while atomic_load(workers) != 0:
            looks += 1
            if looks > _LOOKS:
                _sched_yield()


_RUN_STAGES = CpuKernel(_run_stages, _TABLE_BLOCK)


def can_run() -> bool:
    """Tell whether programs run on this system: waiting threads must be able to yield their core."""
    return hasattr(os, "sched_yield")


class CpuProgram:
    """The calls of several layers in one table.

    Must not be used from two threads at once, nor while another program that was recorded on the same thread runs: both
    have that thread's scratch memory.
    """

    def __init__(self, num_layers: int) -> None:
        self._num_layers = num_layers
        self._table = _aligned_words(num_layers, 0)
        self._is_parallel = False

    def place(
        self,
        layers: Sequence[int],
        recording: Recording,
        *,
        own: npt.NDArray[np.int64],
        renamed: Mapping[int, int],
    ) -> None:
        """Place a recording for each of `layers`, which are alike; the first of them is the recorded one.

        `own` `[num_layers, addresses]` holds every layer's own addresses: a recorded address that is one of the first
        layer's becomes that layer's. `renamed` maps addresses to replace everywhere. The recording with the most calls
        is placed first.
        """
        num_stages = len(recording.calls)
        if self._table.shape[1] < num_stages:
            self._table = _aligned_words(self._num_layers, num_stages)
        self._is_parallel = any(call.parallel for call in recording.calls)
        compile_all(call.kernel for call in recording.calls)
        columns = {address: column for column, address in enumerate(own[layers[0]].tolist()) if address}
        stages = np.zeros((self._table.shape[1], _STAGE_WORDS), dtype=np.int64)  # those left over have no tasks
        places, sources = [], []
        for stage, call in enumerate(recording.calls):
            assert len(call.words) <= _STAGE_WORDS - _BLOCK - FIRST_WORD
            start = stage * _STAGE_WORDS
            words = list(call.words)
            for index in call.kernel.block.addresses:
                address = int(words[index])
                if address in columns:
                    places.append(start + _BLOCK + FIRST_WORD + index)
                    sources.append(columns[address])
                elif address in renamed:
                    words[index] = renamed[address]
            stages[stage, _FUNCTION] = call.kernel.address
            call.kernel.block.write(stages, 8 * (start + _BLOCK), call.num_tasks, words)
        flat = self._table.reshape(self._num_layers, -1)
        flat[list(layers)] = stages.reshape(-1)
        flat[np.ix_(layers, places)] = own[np.ix_(layers, sources)]

    def run(self, num_layers: int | None = None) -> bool:
        """Run the calls of the first layers, or of all, in order; return whether any had an index out of range.

        May be called again.
        """
        table = self._table[:num_layers]
        table[:, :, _BLOCK + COUNTER] = 0
        table[:, :, _BLOCK + FAULT] = 0
        words = table.ctypes.data, table.shape[0] * table.shape[1]
        _RUN_STAGES(torch.get_num_threads(), words, parallel=self._is_parallel)
        return bool(table[:, :, _BLOCK + FAULT].any())


def _aligned_words(num_layers: int, num_stages: int) -> npt.NDArray[np.int64]:
    count = num_layers * num_stages * _STAGE_WORDS
    memory = np.zeros(count + 8, dtype=np.int64)
    start = -memory.ctypes.data % 64 // 8
    return memory[start : start + count].reshape(num_layers, num_stages, _STAGE_WORDS)
