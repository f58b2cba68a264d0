"""Tests of blocks of each type against a bitwise reading, and against ggml if it is installed."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.gguf.container import GgufFile
from engine.gguf.dequantize import read_tensor
from engine.gguf.tensor_types import BLOCK_SIZES, TensorType
from tests.engine.gguf.blocks import SLOWLY, some_blocks
from tests.engine.gguf.builders import NUMBER_OF, StoredTensor, Written
from tests.real_model import require_gguf


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
