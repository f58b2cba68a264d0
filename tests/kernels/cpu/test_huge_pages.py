"""Tests of memory for packed weights: separate, aligned, freed."""

from __future__ import annotations

import mmap

import pytest
import torch

from kernels.cpu.runtime import huge_pages


def test_tensors_are_zero_aligned_and_apart() -> None:
    shapes = [(0, 3), (1,), (7, 5), (1000, 1000), (2**25 + 1,), (3, 2, 2)]
    tensors = [huge_pages.zeros(shape, torch.bfloat16) for shape in shapes]
    for mark, (shape, tensor) in enumerate(zip(shapes, tensors, strict=True)):
        assert tensor.shape == shape
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 64 == 0
        assert not tensor.any()
        tensor.fill_(mark + 1)
    for mark, tensor in enumerate(tensors):
        assert tensor.eq(mark + 1).all()


def test_regions_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "_REGION_BYTES", 1024)
    monkeypatch.setattr(huge_pages, "_newest", torch.empty(0, dtype=torch.uint8))
    tensors = [huge_pages.zeros((count,), torch.int32) for count in (100, 100, 120, 128, 129, 8)]
    for mark, tensor in enumerate(tensors):
        tensor.fill_(mark)
    assert [int(tensor.sum()) for tensor in tensors] == [0, 100, 240, 384, 516, 40]


def test_a_system_without_huge_pages_gives_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert huge_pages.zeros((2**26,), torch.int8).sum() == 0
