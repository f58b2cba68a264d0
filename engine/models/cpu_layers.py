"""Run all layers of a decoder in one call on a CPU. Relies only on layers being alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from engine.models.step_model import KvCache
from kernels.cpu import DTYPES, CpuProgram, Recording, can_run, record
from kernels.paged import PagedStep

_MOST_KEPT_TOKENS = 256
"""Maximum tokens of a step whose recordings are kept; longer steps spend little of their time on recording."""

_STEP_TENSORS = ("block_tables", "query_start", "context_lens", "slots", "positions")


class RecordableLayer(Protocol):
    """A layer all of whose work goes through compiled CPU kernels."""

    @property
    def kind(self) -> object:
        """Equal for layers whose recorded calls differ in addresses alone."""
        ...

    @property
    def addresses(self) -> list[int] | None:
        """Addresses of its weights, in the same order for every layer; None if some work goes through torch."""
        ...


Forward = Callable[[int, Tensor, Tensor, PagedStep], tuple[Tensor, Tensor]]
"""Runs layer `index` over (x, residual) of a step; returns its output and the residual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """The program's recording: calls that read these tensors, and references that keep their outputs alive."""

    key: tuple[object, ...]
    cache: KvCache
    x: Tensor
    residual: Tensor
    step: PagedStep
    recordings: list[Recording]

    def fill(self, x: Tensor, step: PagedStep) -> None:
        """Copy another step's inputs, of the same shapes, to where the calls read them."""
        self.x.copy_(x)
        self.residual.zero_()
        for name in _STEP_TENSORS:
            getattr(self.step, name).copy_(getattr(step, name))


class CpuLayers:
    """Record one layer of each kind, and run the recordings with every layer's own weights and cache.

    The recordings of a small step are reused if the next step has the same shape: only its inputs are copied then.
    """

    def __init__(self, layers: Sequence[RecordableLayer]) -> None:
        self._weights = np.array([layer.addresses for layer in layers], dtype=np.int64)
        kinds = [layer.kind for layer in layers]
        self._kinds = [[index for index, kind in enumerate(kinds) if kind == one] for one in dict.fromkeys(kinds)]
        self._program = CpuProgram(len(layers))
        self._recorded: _Recorded | None = None

    def run(
        self, forward: Forward, x: Tensor, step: PagedStep, cache: KvCache, *, num_layers: int
    ) -> tuple[Tensor, Tensor] | None:
        """Run the first `num_layers` over x `[tokens, hidden]`; return the last result, valid until the next call.

        None if the layers must be run one by one instead: for a cache dtype that compiled kernels do not read, or at an
        index out of range, which the op then reports. `forward` must be the same in all calls.

        The recorded calls support contexts of any length that fits the block tables, whose width is a shape.
        """
        if cache[0].keys.dtype not in DTYPES:
            return None
        max_context_len = max(step.block_tables.shape[1] * cache[0].keys.shape[2], step.max_context_len)
        key, recorded = (_shape_of(x, step), max_context_len), self._recorded
        if recorded is not None and recorded.key == key and recorded.cache is cache:
            recorded.fill(x, step)
        else:
            recorded = self._record(forward, x, replace(step, max_context_len=max_context_len), cache, key=key)
        has_failed = self._program.run(num_layers)
        self._recorded = recorded if x.shape[0] <= _MOST_KEPT_TOKENS and not has_failed else None
        return None if has_failed else (recorded.x, recorded.residual)

    def _record(
        self, forward: Forward, x: Tensor, step: PagedStep, cache: KvCache, *, key: tuple[object, ...]
    ) -> _Recorded:
        x, residual = x.clone(), torch.zeros_like(x)
        step = replace(step, **{name: getattr(step, name).clone() for name in _STEP_TENSORS})
        caches = np.array([[keys.data_ptr(), values.data_ptr()] for keys, values in cache], dtype=np.int64)
        own = np.concatenate([self._weights, caches], axis=1)
        recordings = []
        for layers in self._kinds:
            with record() as recording:
                output, total = forward(layers[0], x, residual, step)
            renamed = {output.data_ptr(): x.data_ptr(), total.data_ptr(): residual.data_ptr()}
            recordings.append((layers, recording, renamed))
        for layers, recording, renamed in sorted(recordings, key=lambda recorded: -len(recorded[1].calls)):
            self._program.place(layers, recording, own=own, renamed=renamed)
        kept = [recording for _, recording, _ in recordings]
        return _Recorded(key=key, cache=cache, x=x, residual=residual, step=step, recordings=kept)


def _shape_of(x: Tensor, step: PagedStep) -> tuple[object, ...]:
    """Return everything that recorded calls depend on except the longest context and the tensors' values."""
    tensors = [x, *(getattr(step, name) for name in _STEP_TENSORS)]
    numbers = step.max_query_len, step.num_decodes, torch.get_num_threads()
    return *((tensor.shape, tensor.stride()) for tensor in tensors), *numbers


def cpu_layers(layers: Sequence[RecordableLayer]) -> CpuLayers | None:
    """Return an object that runs `layers` in one call; None if the layers or this system do not allow it."""
    if not can_run() or any(layer.addresses is None for layer in layers):
        return None
    return CpuLayers(layers)
