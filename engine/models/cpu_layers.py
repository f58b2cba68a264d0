"""Run all layers of a decoder in one call on a CPU. Knows that layers are alike, not what they compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from engine.models.step_model import KvCache
from kernels.cpu import DTYPES, CpuProgram, can_run, record


class RecordableLayer(Protocol):
    """A layer all of whose work goes through compiled CPU kernels."""

    @property
    def window(self) -> int | None:
        """The one number in which layers of a model differ."""
        ...

    @property
    def addresses(self) -> list[int] | None:
        """Where its weights lie, in the same order for every layer; None where some work goes through torch."""
        ...


class CpuLayers:
    """Record one layer of each kind per step, and run the recordings with every layer's own weights and cache."""

    def __init__(self, layers: Sequence[RecordableLayer]) -> None:
        self._weights = np.array([layer.addresses for layer in layers], dtype=np.int64)
        windows = [layer.window for layer in layers]
        self._kinds = [
            [index for index, window in enumerate(windows) if window == kind] for kind in dict.fromkeys(windows)
        ]
        self._program = CpuProgram(len(layers))

    def run(
        self,
        forward: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]],
        x: Tensor,
        cache: KvCache,
    ) -> tuple[Tensor, Tensor] | None:
        """Return what the last layer returns, with x `[tokens, hidden]` overwritten.

        `forward(index, x, residual)` runs one layer and returns its output and residual. None where the layers must be
        run one by one instead: for a cache dtype that compiled kernels do not read, or at an index out of range. Then
        x is overwritten all the same, and the op that is at fault will say so.
        """
        if cache[0].keys.dtype not in DTYPES:
            return None
        residual = torch.zeros_like(x)
        caches = np.array([[keys.data_ptr(), values.data_ptr()] for keys, values in cache], dtype=np.int64)
        own = np.concatenate([self._weights, caches], axis=1)
        recordings = []  # they keep the tensors between the kernels until all have run
        for layers in self._kinds:
            with record() as recording:
                output, total = forward(layers[0], x, residual)
            renamed = {output.data_ptr(): x.data_ptr(), total.data_ptr(): residual.data_ptr()}
            self._program.place(layers, recording, own=own, renamed=renamed)
            recordings.append(recording)
        return None if self._program.run() else (x, residual)


def cpu_layers(layers: Sequence[RecordableLayer]) -> CpuLayers | None:
    """Return a way to run `layers` in one call; None where they, or this system, do not allow it."""
    if not can_run() or any(layer.addresses is None for layer in layers):
        return None
    return CpuLayers(layers)
