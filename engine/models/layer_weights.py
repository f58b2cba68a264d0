"""Read a decoder's weights onto its device, as the layers that multiply them: packed where it can keep them so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from engine.models.config import ModelConfig
from engine.models.layer_parts import Joined, LayerParts
from engine.models.random_weights import RandomWeights
from engine.models.weights import Checkpoint
from kernels.choice.products import choose_products
from kernels.choice.weighing import WeightShape
from kernels.grouped_linear import GroupedLinear, stays_packed
from kernels.grouped_weight import Layout, join
from kernels.packed_linear import PackedLinear

Linear = PackedLinear | GroupedLinear


class WeightReader:
    """Read tensors from a checkpoint onto the device, joining those that are multiplied together."""

    def __init__(
        self,
        weights: Checkpoint | RandomWeights,
        config: ModelConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        has_head: bool,
        has_steps: bool = True,
    ) -> None:
        """Choose the products of all weights if the device is a CPU; with `has_head` also the output matrix's.

        `has_steps`: see `WeightShape`.
        """
        self._weights, self._config, self._dtype, self._device = weights, config, dtype, device
        self._stays_packed = isinstance(weights, Checkpoint) and stays_packed(dtype, device.type)
        is_bare = isinstance(weights, Checkpoint) and "embed_tokens.weight" in weights
        self._prefix = (
            "" if is_bare else "model."
        )  # of all names but the head's; a file written without a head has none
        shapes = [replace(shape, has_steps=has_steps) for shape in self._shapes(has_head=has_head)]
        self._choice = choose_products(shapes, dtype) if device.type == "cpu" else None

    @property
    def products(self) -> str | None:
        """The chosen products in words; None if the device is no CPU."""
        return None if self._choice is None else str(self._choice)

    @property
    def is_in_float32(self) -> bool:
        """Whether this CPU multiplies bf16 faster in fp32, as measured for the layers' weights."""
        return self._choice is not None and self._choice.is_in_float32

    @property
    def embedding(self) -> Joined:
        """The embedding, by token."""
        config = self._config
        return Joined(parts=((f"{self._prefix}embed_tokens", config.vocab_size),), depth=config.hidden_size)

    @property
    def head(self) -> Joined:
        """The output matrix, which may be the embedding."""
        config = self._config
        if config.has_tied_embeddings:
            return self.embedding
        return Joined(parts=(("lm_head", config.vocab_size),), depth=config.hidden_size)

    def prefix_of(self, index: int) -> str:
        """Return the beginning of a layer's names."""
        return f"{self._prefix}layers.{index}"

    def norm(self) -> Tensor:
        """Return the weight of the last norm."""
        return self.tensor(f"{self._prefix}norm.weight", (self._config.hidden_size,))

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor to keep, in memory of its own: a view of the file keeps it mapped, and changes with it."""
        return self._weights.read(name, shape).to(self._device, copy=self._device.type == "cpu")

    def linear(self, joined: Joined) -> Linear:
        """Return the layer of joined weights, with the product chosen for their shape."""
        biases = [self.tensor(f"{name}.bias", (width,)) for name, width in joined.parts] if joined.has_bias else []
        bias = torch.cat(biases) if biases else None
        layout = self._layout(joined)
        product = None if self._choice is None else self._choice.of(joined.width, joined.depth, layout)
        if layout is None:
            return PackedLinear(self._whole(joined), bias, product=product)
        assert isinstance(self._weights, Checkpoint), "random weights have no layout"
        weights = [self._weights.read_grouped(f"{name}.weight", (width, joined.depth)) for name, width in joined.parts]
        return GroupedLinear(join(weights).to(self._device), bias, dtype=self._dtype, product=product)

    def rows(self, joined: Joined) -> Callable[[Tensor], Tensor]:
        """Return a function that reads rows of a weight that no layer multiplies."""
        if self._layout(joined) is not None:
            return self.linear(joined).rows
        ((name, width),) = joined.parts
        return partial(functional.embedding, weight=self.tensor(f"{name}.weight", (width, joined.depth)))

    def _whole(self, joined: Joined) -> Tensor:
        """Return joined weights to pack: on a CPU they may be a view of the file."""
        weights = [
            self._weights.read(f"{name}.weight", (width, joined.depth)).to(self._device) for name, width in joined.parts
        ]
        return weights[0] if len(weights) == 1 else torch.cat(weights)

    def _layout(self, joined: Joined) -> Layout | None:
        """Return how joined weights stay packed; None if they must be read whole, as are those of several layouts."""
        if not self._stays_packed or not isinstance(self._weights, Checkpoint):
            return None
        layouts = {self._weights.layout(f"{name}.weight") for name, _ in joined.parts}
        return layouts.pop() if len(layouts) == 1 else None

    def _shapes(self, *, has_head: bool) -> list[WeightShape]:
        counts: Counter[tuple[int, int, Layout | None]] = Counter()
        for index in range(self._config.num_layers):
            for joined in LayerParts.of(self._config, self.prefix_of(index)).all:
                counts[joined.width, joined.depth, self._layout(joined)] += 1
        shapes = [
            WeightShape(width=width, depth=depth, count=count, is_in_layers=True, layout=layout)
            for (width, depth, layout), count in counts.items()
        ]
        if has_head:
            head = self.head
            layout = self._layout(head)
            shapes.append(WeightShape(width=head.width, depth=head.depth, count=1, is_in_layers=False, layout=layout))
        return shapes
