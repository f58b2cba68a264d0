"""The weights of a LoRA adapter on the device, and what they add to the products of each layer.

On a CPU the factors are multiplied by the best product of their dtype, by which a row's bits do not depend on the rows
beside it. See files.py for the formula.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import ModelLoadError
from engine.models.adapters.files import AdapterFiles, LowRank
from engine.models.config import ModelConfig
from engine.models.layer_parts import Joined, LayerParts
from kernels.packed_linear import PackedLinear


class Change:
    """What an adapter adds to the outputs of weights that are multiplied together."""

    __slots__ = ("_down", "_parts")

    def __init__(self, downs: Sequence[Tensor], ups: Sequence[Tensor], offsets: Sequence[int]) -> None:
        """Take the factors `[rank, in]` and `[out, rank]` of some of the weights, and where their outputs begin."""
        self._down = PackedLinear(torch.cat(list(downs)), None)
        self._parts = []
        first = 0
        for up, offset in zip(ups, offsets, strict=True):
            rank = up.shape[1]
            self._parts.append((first, first + rank, offset, PackedLinear(up, None)))
            first += rank

    def add_to(self, y: Tensor, x: Tensor, rows: Tensor | None) -> None:
        """Add the change of inputs x `[tokens, in]` to the outputs y `[tokens, out]` at these rows; None for all."""
        low = self._down(x if rows is None else x.index_select(0, rows))
        for first, last, offset, up in self._parts:
            added = up(low[:, first:last].contiguous())
            part = y[:, offset : offset + up.out_features]
            if rows is None:
                part += added
            else:
                part.index_add_(0, rows, added)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChanges:
    """The changes of a layer; None where the adapter has none."""

    qkv: Change | None
    output: Change | None
    gate_up: Change | None
    down: Change | None


class Adapter:
    """A loaded adapter."""

    def __init__(self, files: AdapterFiles, config: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        """Read the factors. Raises ModelLoadError."""
        self.identity = files.identity
        try:
            with safe_open(files.weights, framework="pt") as file:
                reader = _Reader(file, files, dtype=dtype, device=device)
                self.layers = [reader.layer(LayerParts.of(config, f"layers.{i}")) for i in range(config.num_layers)]
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{files.weights} cannot be read: {error}.") from None


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """The tokens of a step that an adapter changes."""

    adapter: Adapter
    rows: Tensor | None
    """`[rows]` int64 on the device, indices of flat tokens; None for all."""


class _Reader:
    def __init__(self, file: safe_open, files: AdapterFiles, *, dtype: torch.dtype, device: torch.device) -> None:
        self._file, self._changes, self._path = file, files.changes, files.weights
        self._dtype, self._device = dtype, device

    def layer(self, parts: LayerParts) -> LayerChanges:
        qkv, output, gate_up, down = map(self._change, parts.all)
        return LayerChanges(qkv=qkv, output=output, gate_up=gate_up, down=down)

    def _change(self, joined: Joined) -> Change | None:
        found = list(self._found(joined))
        if not found:
            return None
        downs = [self._tensor(change.down, 1.0) for change, _ in found]
        ups = [self._tensor(change.up, change.scale) for change, _ in found]
        return Change(downs, ups, [offset for _, offset in found])

    def _found(self, joined: Joined) -> Iterator[tuple[LowRank, int]]:
        """Yield the changes of the parts that have one, each with where the part's outputs begin."""
        offset = 0
        for name, width in joined.parts:
            if name in self._changes:
                yield self._changes[name], offset
            offset += width

    def _tensor(self, name: str, scale: float) -> Tensor:
        factor: Tensor = self._file.get_tensor(name)  # type: ignore[no-untyped-call]
        if not torch.isfinite(factor).all():
            raise ModelLoadError(f"{self._path}: {name} has values that are no finite numbers.")
        return (factor.float() * scale).to(self._dtype).to(self._device)
