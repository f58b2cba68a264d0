"""Dequantize weights: FP8 with a scale for each block, MXFP4 with an exponent for every 32 values."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.errors import ModelLoadError
from engine.quantized.quantization import Scaled
from engine.quantized.stored import described

_FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)

_FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Indexed by the four bits: sign, two of the exponent, one of the mantissa (OCP Microscaling Formats 1.0, 5.3.3)."""


def dequantize_fp8(weight: Tensor, scales: Tensor, name: str, *, scaled: Scaled) -> Tensor:
    """Return the weight `[..., rows, columns]` in fp32, each block times its scale of `[..., row and column blocks]`.

    The last block of a row or column may be partial. Raises ModelLoadError if the shapes do not match.
    """
    if weight.ndim < 2:
        raise ModelLoadError(f"{name} is {described(weight)} with scales; such a weight needs two dimensions or more.")
    rows, columns = weight.shape[-2:]
    height, width = scaled.block or (max(rows, 1), None)
    width = width or max(columns, 1)
    shape = (*weight.shape[:-2], -(-rows // height), -(-columns // width))
    if scaled.block is None and scales.numel() == math.prod(shape):
        scales = scales.reshape(shape)  # a single scale is stored without dimensions, or with one
    if weight.dtype not in _FP8_DTYPES or not scales.is_floating_point() or tuple(scales.shape) != shape:
        raise ModelLoadError(
            f"{name} is {described(weight)} with scales that are {described(scales)}; fp8 with {scaled} has scales of "
            f"{list(shape)}."
        )
    spread = scales.float().repeat_interleave(height, dim=-2)[..., :rows, :]
    return weight.float().mul_(spread.repeat_interleave(width, dim=-1)[..., :columns])


def dequantize_mxfp4(blocks: Tensor, scales: Tensor, name: str) -> Tensor:
    """Return experts' weights `[experts, columns, rows]` in bf16, which represents every such value exactly.

    `blocks` is `[experts, rows, groups, bytes]`, two values a byte, the low half first; `scales` is `[experts, rows,
    groups]`, the exponent of two plus 127. transformers wants the weights of experts transposed. Raises ModelLoadError
    if the shapes do not match.
    """
    are_bytes = blocks.dtype == scales.dtype == torch.uint8
    if not are_bytes or blocks.ndim != 4 or blocks.shape[:3] != scales.shape:
        raise ModelLoadError(
            f"{name} has blocks that are {described(blocks)} and scales that are {described(scales)}; mxfp4 has uint8 "
            "[experts, rows, groups, bytes] and uint8 [experts, rows, groups]."
        )
    num_experts, rows, groups, num_bytes = blocks.shape
    values = torch.tensor(_FP4_VALUES, dtype=torch.bfloat16)
    pairs = torch.stack((values.repeat(16), values.repeat_interleave(16)), dim=-1).view(torch.int32).view(-1)
    factors = scales.view(torch.float8_e8m0fnu).to(torch.bfloat16)
    whole = torch.empty((num_experts, groups * num_bytes * 2, rows), dtype=torch.bfloat16)
    for expert in range(num_experts):  # one by one: an index takes four bytes, and there is one for each byte
        # Looking pairs up as one number takes 0.09 s for 16.6 million values, single values 0.75 s (one thread, EPYC).
        words = pairs.index_select(0, blocks[expert].flatten().int())
        expanded = words.view(torch.bfloat16).view(rows, groups, -1).mul_(factors[expert, :, :, None])
        whole[expert] = expanded.view(rows, -1).T
    return whole
