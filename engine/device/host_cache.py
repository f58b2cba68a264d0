"""The KV of preempted sequences in host memory: block copies between it and the device's cache."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.scheduling.plan import BlockCopy

_MEASURED_BLOCKS = 8
_MEASURED_ROUNDS = 3

_Cache = Sequence[tuple[Tensor, Tensor]]


class HostCache:
    """Hold `num_blocks` blocks of every layer in host memory, pinned if the cache is on a GPU."""

    def __init__(self, cache: _Cache, num_blocks: int) -> None:
        """Take the shapes and dtype of `cache`: per layer keys and values, `[blocks, heads, block_size, head_dim]`."""
        self._layers = [
            tuple(
                torch.empty((num_blocks, *part.shape[1:]), dtype=part.dtype, pin_memory=part.is_cuda) for part in pair
            )
            for pair in cache
        ]

    def copy_out(self, cache: _Cache, copies: Sequence[BlockCopy]) -> None:
        """Copy device blocks to host blocks. Returns when the device blocks may be overwritten."""
        if copies:
            device_ids, host_ids = _ids(copies)
            for pair, host_pair in zip(cache, self._layers, strict=True):
                for part, host_part in zip(pair, host_pair, strict=True):
                    host_part[host_ids] = part[device_ids.to(part.device)].to("cpu")

    def copy_in(self, cache: _Cache, copies: Sequence[BlockCopy]) -> None:
        """Copy host blocks to device blocks, before anything that is launched later reads them."""
        if copies:
            device_ids, host_ids = _ids(copies)
            for pair, host_pair in zip(cache, self._layers, strict=True):
                for part, host_part in zip(pair, host_pair, strict=True):
                    part[device_ids.to(part.device)] = host_part[host_ids].to(part.device)


def seconds_per_block(cache: _Cache) -> float:
    """Measure the time to copy one block of every layer out and in again: the best of a few rounds."""
    num_blocks = min(_MEASURED_BLOCKS, cache[0][0].shape[0])
    host = HostCache(cache, num_blocks)
    copies = [BlockCopy(device_blocks=list(range(num_blocks)), host_blocks=list(range(num_blocks)))]
    rounds = []
    for _ in range(_MEASURED_ROUNDS):
        start = time.perf_counter()
        host.copy_out(cache, copies)
        host.copy_in(cache, copies)
        if cache[0][0].is_cuda:
            torch.cuda.synchronize(cache[0][0].device)
        rounds.append(time.perf_counter() - start)
    return min(rounds) / num_blocks


def _ids(copies: Sequence[BlockCopy]) -> tuple[Tensor, Tensor]:
    device = [block for copy in copies for block in copy.device_blocks]
    host = [block for copy in copies for block in copy.host_blocks]
    return torch.tensor(device, dtype=torch.int64), torch.tensor(host, dtype=torch.int64)
