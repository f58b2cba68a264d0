"""Asynchronous copies between host and device: both sides continue, and only reading a result waits for it.

From pageable memory torch waits for all work of the device before a copy, so on CUDA every copy goes through pinned
memory, which torch's host allocator keeps until the copy is done. On a CPU there is nothing to copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNMENT = 16
"""Triton compiles one variant of a kernel for pointers to a multiple of this and another for all others."""


def upload(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Return the array as a tensor on the device; on a CPU it shares the array's memory."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def upload_together(arrays: list[npt.NDArray[Any]], device: torch.device) -> list[Tensor]:
    """Return the arrays as tensors on the device, in one copy; on a CPU they share the arrays' memory."""
    if device.type != "cuda":
        return [torch.from_numpy(array) for array in arrays]
    sizes = [-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays]
    packed = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=True)
    whole, begin = packed.numpy(), 0
    for array, size in zip(arrays, sizes, strict=True):
        whole[begin : begin + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        begin += size
    parts = packed.to(device, non_blocking=True).split(sizes)  # type: ignore[no-untyped-call]
    return [
        part[: array.nbytes].view(_dtype(array)).view(array.shape) for part, array in zip(parts, arrays, strict=True)
    ]


class Download:
    """Tensors being copied to the host, after all earlier work of the device."""

    def __init__(self, *tensors: Tensor) -> None:
        """Start the copies; later work of the device may overwrite `tensors`."""
        self._done: torch.cuda.Event | None = None
        if tensors[0].is_cuda:
            self._copies = [
                torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
                for tensor in tensors
            ]
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record()
        else:
            self._copies = [tensor.clone() for tensor in tensors]

    def read(self) -> list[npt.NDArray[Any]]:
        """Wait for the copies and return them."""
        if self._done is not None:
            self._done.synchronize()
        return [copy.numpy() for copy in self._copies]


def _dtype(array: npt.NDArray[Any]) -> torch.dtype:
    return torch.from_numpy(array[:0]).dtype
