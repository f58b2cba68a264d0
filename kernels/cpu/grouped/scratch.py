"""Memory in which the threads of a call prepare panels, a slot for each; the calls of one thread share it."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

_LINE_BYTES = 64

_memory = threading.local()


def scratch(size: int) -> Tensor:
    """Return at least `size` bytes that this thread's next call may overwrite, aligned to cache lines.

    A recording has to keep what it was given: the memory for a larger call is another.
    """
    memory: Tensor | None = getattr(_memory, "tensor", None)
    if memory is None or memory.shape[0] < size:
        whole = torch.empty(size + _LINE_BYTES, dtype=torch.uint8)
        memory = _memory.tensor = whole[-whole.data_ptr() % _LINE_BYTES :]
    return memory
