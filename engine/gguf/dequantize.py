"""Read tensors of a GGUF file whole: as they are stored, or in fp32 like ggml's reference functions."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.gguf.container import GgufFile, TensorInfo
from engine.gguf.grouped import widened
from engine.gguf.tensor_types import BLOCK_SIZES, TensorType

_PIECE_VALUES = 2**18
"""Values dequantized at once: some MiB for a tensor of any size, which stay in the cache."""


def read_tensor(file: GgufFile, name: str) -> Tensor:
    """Return a tensor of the file on the CPU: as it is stored, in fp32 if it is quantized."""
    info = file.tensors[name]
    stored = file.stored(name)
    if info.kind in _STORED_DTYPES:
        return torch.from_numpy(stored.copy()).view(_STORED_DTYPES[info.kind]).view(info.shape)
    return _dequantized(stored, info).view(info.shape)


_STORED_DTYPES = {TensorType.F32: torch.float32, TensorType.F16: torch.float16, TensorType.BF16: torch.bfloat16}


def _dequantized(stored: npt.NDArray[np.uint8], info: TensorInfo) -> Tensor:
    size = BLOCK_SIZES[info.kind]
    blocks = stored.reshape(-1, size.num_bytes)
    values = torch.empty(math.prod(info.shape), dtype=torch.float32)
    rows, step = values.view(-1, size.num_values), _PIECE_VALUES // size.num_values
    for start in range(0, len(blocks), step):
        piece = blocks[start : start + step]
        rows[start : start + step] = widened(piece, info.kind)
    return values
