"""Building blocks of encoders: products, norms, activations, and attention within texts that lie end to end."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.activations import Activation
from kernels.grouped_linear import GroupedLinear
from kernels.layer_norm import add_layer_norm, layer_norm
from kernels.packed_linear import PackedLinear
from kernels.paged import AttentionRule, LayerCache, PagedStep
from kernels.paged_attention import paged_attention
from kernels.rope_and_write_kv import rope_and_write_kv
from kernels.write_kv import write_kv

Linear = PackedLinear | GroupedLinear

ACTIVATIONS = {
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
}
"""By transformers' names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A layer norm, whose weight and bias are fp32 `[size]`."""

    weight: Tensor
    bias: Tensor
    """Zeros if the model has none."""
    eps: float

    def __call__(self, rows: Tensor) -> Tensor:
        """Normalise rows."""
        return layer_norm(rows, self.weight, self.bias, eps=self.eps)

    def of_sum(self, rows: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the two normalised, and the sum."""
        return add_layer_norm(rows, residual, self.weight, self.bias, eps=self.eps)

    @property
    def addresses(self) -> list[int]:
        """Return the addresses of everything that it holds."""
        return [self.weight.data_ptr(), self.bias.data_ptr()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Attention of a layer with the products around it; a token sees those before and after it."""

    query_key_value: Linear
    output: Linear
    num_heads: int
    rule: AttentionRule
    cos_sin: Tensor | None = None
    """Rotary positions, fp32 `[positions, head size]`; None without."""

    def __call__(self, rows: Tensor, step: PagedStep, cache: LayerCache) -> Tensor:
        """Attend within each text of a step; `cache` is overwritten."""
        joined = self.query_key_value(rows)
        head_size = joined.shape[1] // (3 * self.num_heads)
        query, key, value = joined.view(-1, 3, self.num_heads, head_size).unbind(1)
        if self.cos_sin is None:
            write_kv(key, value, cache, step.slots)
        else:
            rope_and_write_kv(query, key, value, self.cos_sin, cache, step)
        return self.output(paged_attention(query, cache, step, self.rule).flatten(1))

    @property
    def linears(self) -> list[Linear]:
        """Return its products."""
        return [self.query_key_value, self.output]


def sees_all(head_size: int, *, in_float32: bool) -> AttentionRule:
    """Return the rule of a token that sees its whole text."""
    return AttentionRule(scale=head_size**-0.5, ahead=None, in_float32=in_float32)


def sees_near(head_size: int, distance: int, *, in_float32: bool) -> AttentionRule:
    """Return the rule of a token that sees tokens up to this many places before and after it."""
    return AttentionRule(scale=head_size**-0.5, window=distance + 1, ahead=distance, in_float32=in_float32)


def rotary_angles(*, theta: float, head_size: int, length: int) -> Tensor:
    """Return the cosines, then the sines, of positions 0 to `length` - 1 (RoPE, arXiv 2104.09864)."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
