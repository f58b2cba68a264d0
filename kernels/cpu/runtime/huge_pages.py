"""Memory for packed weights on huge pages, if the system has any.

A product over few rows walks through hundreds of MB, and with pages of 4 KiB much of the time goes to address lookups:
README.md has the timings. Most weights are smaller than a huge page, so they share regions. A region's memory is
allocated page by page as it is written, and freed with the last tensor in it; the newest region is kept for the next
tensors.
"""

from __future__ import annotations

import math
import mmap
import threading
from contextlib import suppress

import torch
from torch import Tensor

_HUGE_PAGE_BYTES = 2**21
_REGION_BYTES = 2**26
_ALIGN_BYTES = 64  # a cache line

_lock = threading.Lock()
_newest = torch.empty(0, dtype=torch.uint8)  # the free rest of the newest region


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a new contiguous CPU tensor of zeros, aligned to 64 bytes."""
    size = math.prod(shape) * dtype.itemsize
    return _carve(-(-size // _ALIGN_BYTES) * _ALIGN_BYTES)[:size].view(dtype).view(shape)


def _carve(size: int) -> Tensor:
    global _newest  # noqa: PLW0603  weights of many layers share one region
    if size > _REGION_BYTES // 2:
        return _new_region(size)
    with _lock:
        if size > _newest.shape[0]:
            _newest = _new_region(_REGION_BYTES)
        taken, _newest = _newest[:size], _newest[size:]
    return taken


def _new_region(size: int) -> Tensor:
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    # Shared memory, the default of `mmap`, depends on another setting of the kernel, which is mostly off.
    flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    memory = mmap.mmap(-1, size + _HUGE_PAGE_BYTES, **flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    region = torch.frombuffer(memory, dtype=torch.uint8)
    start = -region.data_ptr() % _HUGE_PAGE_BYTES
    return region[start : start + size]
