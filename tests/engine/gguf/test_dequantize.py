"""Tests of blocks of each type against a bitwise reading, and against ggml if it is installed."""

from __future__ import annotations

import importlib
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.gguf.container import GgufFile
from engine.gguf.dequantize import read_tensor
from engine.gguf.tensor_types import BLOCK_SIZES, TensorType
from tests.engine.gguf.builders import NUMBER_OF, StoredTensor, Written
from tests.real_model import require_gguf

Number = np.float32


def half(block: bytes, at: int) -> Number:
    return Number(struct.unpack_from("<e", block, at)[0])


def bit(block: bytes, at: int, index: int) -> int:
    return block[at + index // 8] >> index % 8 & 1


def nibble(block: bytes, at: int, index: int) -> int:
    """Value `index` of 32: the first 16 are the low halves of 16 bytes."""
    return block[at + index] & 15 if index < 16 else block[at + index - 16] >> 4


def paired_nibble(block: bytes, at: int, index: int) -> int:
    """Value `index` of 256: 32 bytes hold 64 values, those of the low halves first."""
    group, place = divmod(index, 64)
    byte = block[at + 32 * group + place % 32]
    return byte & 15 if place < 32 else byte >> 4


def six_bits(block: bytes, at: int, part: int) -> tuple[int, int]:
    packed = block[at : at + 12]
    if part < 4:
        return packed[part] & 63, packed[part + 4] & 63
    high = packed[part - 4] >> 6, packed[part] >> 6
    return packed[part + 4] & 15 | high[0] << 4, packed[part + 4] >> 4 | high[1] << 4


def of_parts(block: bytes, index: int, value: int) -> Number:
    scale, minimum = six_bits(block, 4, index // 32)
    return half(block, 0) * Number(scale) * Number(value) - half(block, 2) * Number(minimum)


def q6_k(block: bytes, index: int) -> Number:
    section, place = divmod(index, 128)
    quarter, column = divmod(place, 32)
    byte = block[64 * section + place % 64]
    low = byte & 15 if place < 64 else byte >> 4
    high = block[128 + 32 * section + column] >> 2 * quarter & 3
    (scale,) = struct.unpack_from("b", block, 192 + index // 16)
    return half(block, 208) * Number(scale) * Number((low | high << 4) - 32)


SLOWLY: dict[str, Callable[[bytes, int], Number]] = {
    "F32": lambda block, _: Number(struct.unpack("<f", block)[0]),
    "F16": lambda block, _: half(block, 0),
    "BF16": lambda block, _: Number(struct.unpack("<f", b"\0\0" + block)[0]),
    "Q8_0": lambda block, i: half(block, 0) * Number(struct.unpack_from("b", block, 2 + i)[0]),
    "Q4_0": lambda block, i: half(block, 0) * Number(nibble(block, 2, i) - 8),
    "Q4_1": lambda block, i: half(block, 0) * Number(nibble(block, 4, i)) + half(block, 2),
    "Q5_0": lambda block, i: half(block, 0) * Number((nibble(block, 6, i) | bit(block, 2, i) << 4) - 16),
    "Q5_1": lambda block, i: half(block, 0) * Number(nibble(block, 8, i) | bit(block, 4, i) << 4) + half(block, 2),
    "Q4_K": lambda block, i: of_parts(block, i, paired_nibble(block, 16, i)),
    "Q5_K": lambda block, i: of_parts(block, i, paired_nibble(block, 48, i) | (block[16 + i % 32] >> i // 32 & 1) << 4),
    "Q6_K": q6_k,
}
SCALES = {"F32": [], "F16": [0], "BF16": [], "Q8_0": [0], "Q4_0": [0], "Q5_0": [0], "Q6_K": [208]}


def some_blocks(kind: str, num_blocks: int, *, seed: int) -> bytes:
    """Return random bytes in which the scales are numbers."""
    random = np.random.default_rng(seed)
    size = BLOCK_SIZES[TensorType(kind)].num_bytes
    blocks = random.integers(0, 256, (num_blocks, size), np.uint8)
    for at in SCALES.get(kind, [0, 2]):
        blocks[:, at : at + 2] = random.normal(size=(num_blocks, 1)).astype("<f2").view(np.uint8)
    if kind in ("F32", "BF16"):
        blocks[:, -1] &= 0xBF  # below the exponents of infinity and of what is no number
    return blocks.tobytes()


def tensor_of(kind: str, data: bytes, shape: tuple[int, ...], path: Path) -> torch.Tensor:
    stored = StoredTensor(kind=kind, shape=shape, data=data)
    return read_tensor(GgufFile(Written(tensors={"x": stored}).to(path / "x.gguf")), "x")


def test_every_type_is_tested() -> None:
    assert list(SLOWLY) == list(TensorType)


@pytest.mark.parametrize("kind", SLOWLY)
def test_values_are_those_that_the_bits_say_one_by_one(kind: str, tmp_path: Path) -> None:
    size = BLOCK_SIZES[TensorType(kind)]
    data = some_blocks(kind, 12, seed=1)
    got = tensor_of(kind, data, (2, 3, 2 * size.num_values), tmp_path)
    blocks = [data[start : start + size.num_bytes] for start in range(0, len(data), size.num_bytes)]
    expected = [float(SLOWLY[kind](block, index)) for block in blocks for index in range(size.num_values)]
    assert got.shape == (2, 3, 2 * size.num_values)
    assert got.flatten().tolist() == expected


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K"])
def test_a_tensor_of_many_pieces_has_every_block_in_its_place(kind: str, tmp_path: Path) -> None:
    size = BLOCK_SIZES[TensorType(kind)]
    num_blocks = 2**19 // size.num_values + 3
    data = some_blocks(kind, num_blocks, seed=2)
    got = tensor_of(kind, data, (num_blocks, size.num_values), tmp_path)
    for row in (0, num_blocks // 2, num_blocks - 3, num_blocks - 1):
        block = data[row * size.num_bytes : (row + 1) * size.num_bytes]
        assert got[row].tolist() == [float(SLOWLY[kind](block, index)) for index in range(size.num_values)]


@pytest.mark.parametrize(("kind", "dtype"), [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_what_is_not_quantized_keeps_its_dtype(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    got = tensor_of(kind, some_blocks(kind, 8, seed=3), (8,), tmp_path)
    assert got.dtype == dtype
    got[0] = 1.0  # it is no part of the file


@pytest.mark.real_model
@pytest.mark.parametrize("kind", SLOWLY)
def test_values_are_those_of_ggmls_own_package(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(require_gguf()))
    gguf: Any = importlib.import_module("gguf")
    data = some_blocks(kind, 64, seed=4)
    got = tensor_of(kind, data, (64, BLOCK_SIZES[TensorType(kind)].num_values), tmp_path)
    number = gguf.GGMLQuantizationType(NUMBER_OF[kind])
    expected = gguf.dequantize(np.frombuffer(data, np.uint8).reshape(64, -1), number)
    assert math.prod(got.shape) == expected.size
    assert np.array_equal(got.float().numpy(), expected)
