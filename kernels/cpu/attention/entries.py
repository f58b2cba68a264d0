"""The compiled functions of attention: one for each pair of dtypes, and for each unit that computes the products.

Imports no torch: attention takes longest to compile, and a process that only compiles it should not load torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu.attention.rows import attend_tile, scratch_of
from kernels.cpu.attention.tasks import tile_of
from kernels.cpu.attention.units import DOTS, MULTIPLY_ADDS, TILES, keep_tiles
from kernels.cpu.attention.words import AT
from kernels.cpu.runtime.block import FAULT, NUM_TASKS
from kernels.cpu.runtime.memory import bfloat16_at, fetch_add, float32_at, int64_at, jit_once, pointer_like

_LINE_BYTES = 64


@jit_once
def _all_tiles(p: Any, query: Any, keys: Any, unit: Any) -> None:
    values, out = pointer_like(keys, p[AT.value_cache]), pointer_like(query, p[AT.out])
    memory = np.empty(scratch_of(p, 0, unit).end + _LINE_BYTES, np.uint8)
    scratch = scratch_of(p, (memory.ctypes.data + _LINE_BYTES - 1) // _LINE_BYTES * _LINE_BYTES, unit)
    shape = int64_at(scratch.shape)
    shape[0] = 0
    task = fetch_add(p, 1)
    while task < p[NUM_TASKS]:
        tile = tile_of(p, task)
        if tile.first >= tile.last:
            task = fetch_add(p, 1)
            continue
        is_right, task = attend_tile(p, (query, keys, values, out), tile, scratch)
        if not is_right:
            p[FAULT] = 1
            break
    keep_tiles(unit, (shape, 0))
    memory[0] = 0  # keeps the scratch alive up to here


def float32_over_float32(p: Any) -> None:
    _all_tiles(p, float32_at(p[AT.query]), float32_at(p[AT.key_cache]), DOTS)


def float32_over_bfloat16(p: Any) -> None:
    _all_tiles(p, float32_at(p[AT.query]), bfloat16_at(p[AT.key_cache]), DOTS)


def bfloat16_over_float32(p: Any) -> None:
    _all_tiles(p, bfloat16_at(p[AT.query]), float32_at(p[AT.key_cache]), DOTS)


def bfloat16_over_bfloat16(p: Any) -> None:
    _all_tiles(p, bfloat16_at(p[AT.query]), bfloat16_at(p[AT.key_cache]), DOTS)


def bfloat16_over_bfloat16_by_multiply_adds(p: Any) -> None:
    _all_tiles(p, bfloat16_at(p[AT.query]), bfloat16_at(p[AT.key_cache]), MULTIPLY_ADDS)


def bfloat16_over_bfloat16_by_tiles(p: Any) -> None:
    _all_tiles(p, bfloat16_at(p[AT.query]), bfloat16_at(p[AT.key_cache]), TILES)
