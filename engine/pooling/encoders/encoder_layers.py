"""Run all layers of an encoder over whole texts, in one compiled call where the CPU allows it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.models.cpu_layers import CpuLayers, cpu_layers
from engine.models.step_model import KvCache
from engine.pooling.encoders.text_step import BLOCK_SIZE, TextStep
from kernels.paged import LayerCache, PagedStep


class EncoderLayer(Protocol):
    """A layer of an encoder; `kind` and `addresses` are those of a `RecordableLayer`."""

    @property
    def kind(self) -> object: ...
    @property
    def addresses(self) -> list[int] | None: ...

    def forward(self, x: Tensor, residual: Tensor, *, step: PagedStep, cache: LayerCache) -> tuple[Tensor, Tensor]:
        """Return the layer's output and the residual stream, `[tokens, hidden]` each; `cache` is overwritten."""
        ...


class _Workspace(threading.local):
    """A thread's recordings, and the keys and values of one layer: no later step needs them, so all layers share."""

    def __init__(self, layers: Sequence[EncoderLayer]) -> None:
        self.at_once: CpuLayers | None = cpu_layers(layers)
        self.cache: KvCache = []


class EncoderLayers:
    """An encoder's layers. Thread-safe: each thread has memory of its own."""

    def __init__(self, layers: Sequence[EncoderLayer], *, num_heads: int, head_size: int, dtype: torch.dtype) -> None:
        self._layers = layers
        self._block = num_heads, BLOCK_SIZE, head_size
        self._dtype = dtype
        self._own = _Workspace(layers)

    def run(self, rows: Tensor, step: TextStep) -> tuple[Tensor, Tensor]:
        """Run every layer over rows `[tokens, hidden]`; return what the last one does, valid until the next call.

        The residual stream starts with zeros.
        """
        cache = self._cache(step.num_blocks)

        def forward(index: int, x: Tensor, residual: Tensor, step: PagedStep) -> tuple[Tensor, Tensor]:
            return self._layers[index].forward(x, residual, step=step, cache=cache[index])

        count = len(self._layers)
        at_once = self._own.at_once
        result = None if at_once is None else at_once.run(forward, rows, step.paged, cache, num_layers=count)
        if result is not None:
            return result
        x, residual = rows, torch.zeros_like(rows)
        for index in range(count):
            x, residual = forward(index, x, residual, step.paged)
        return x, residual

    def _cache(self, num_blocks: int) -> KvCache:
        own = self._own
        if not own.cache or own.cache[0].keys.shape[0] < num_blocks:
            keys, values = (torch.empty((num_blocks, *self._block), dtype=self._dtype) for _ in range(2))
            own.cache = [LayerCache(keys, values)] * len(self._layers)
        return own.cache
