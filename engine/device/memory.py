"""How many KV blocks fit: from a setting, from the machine's memory, or from a profiled step on a GPU."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from engine.device.choice import ResolvedConfig
from engine.errors import InvalidConfigError
from engine.models.step_model import KvShape
from engine.scheduling.blocks import num_blocks_for

_NO_MEMORY = ("can't allocate memory", "Storage size calculation overflowed", "CUDA error: out of memory")
"""torch's messages where it has no OutOfMemoryError: for a CPU's memory, a size, pinned memory."""


def block_bytes(kv_shapes: Sequence[KvShape], *, block_size: int, dtype: torch.dtype) -> int:
    """Return the size of one block over all layers, keys and values."""
    return 2 * sum(shape.num_heads * shape.head_dim for shape in kv_shapes) * block_size * dtype.itemsize


def available_cpu_bytes() -> int:
    """Return the memory that is available now: the kernel's estimate, or the container's limit if lower."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/proc/meminfo") as lines:
            available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        pass  # no such file outside Linux; free pages are the lower bound
    return min(available, *_container_limits())


def _container_limits() -> list[int]:
    limits = []
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            with open(limit) as top, open(used) as now:
                limits.append(int(top.read()) - int(now.read()))
        except (OSError, ValueError):
            continue  # not limited this way ("max" is no number)
    return limits or [2**62]


@contextmanager
def allocating(what: str, *, setting: str) -> Iterator[None]:
    """Allocate in this block; if memory is short, raise InvalidConfigError, which names the setting.

    Any other error of a device is raised unchanged.
    """
    try:
        yield
    except (OSError, OverflowError, RuntimeError) as error:  # from mmap, sizes, and torch with any device
        if isinstance(error, RuntimeError) and not _is_of_memory(error):
            raise
        raise InvalidConfigError(f"There is not enough memory for {what}. Lower {setting}, or free memory.") from error


def _is_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _NO_MEMORY)


def give_back_freed_memory() -> None:
    """Return memory that this process has freed and glibc keeps to the system; elsewhere do nothing.

    Loading and packing weights left 185 MB of a 135M Llama in fp32, 90 MB in bf16 (2026-11-23).
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def num_kv_blocks(config: ResolvedConfig, kv_shapes: Sequence[KvShape], *, free_bytes: int, dtype: torch.dtype) -> int:
    """Return how many blocks requests can use, given the bytes reserved for them.

    Never more than `max_num_seqs` sequences of full length need. Raises InvalidConfigError if not one fits.
    """
    if config.asked.num_kv_blocks is not None:
        return config.asked.num_kv_blocks
    block_size, limits = config.asked.block_size, config.scheduler
    size = block_bytes(kv_shapes, block_size=block_size, dtype=dtype)
    enough = limits.max_num_seqs * num_blocks_for(limits.max_model_len, block_size)
    count = min(enough, free_bytes // size)
    if count < 1:
        raise InvalidConfigError(
            f"{free_bytes // 2**20} MiB are left for the KV cache and one block of {block_size} tokens needs "
            f"{size} bytes. Free memory, or lower block_size, max_num_batched_tokens (now "
            f"{limits.max_num_batched_tokens}) or max_num_seqs (now {limits.max_num_seqs})."
        )
    return count
