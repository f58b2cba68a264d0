"""Building blocks of encoders: products, norms, activations, and attention within packed texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda rows: F.gelu(rows, approximate="tanh"),
    "gelu_pytorch_tanh": lambda rows: F.gelu(rows, approximate="tanh"),
    "relu": F.relu,
}

_WINDOW_QUERIES = 256
"""Number of queries of a layer with a window that are computed at once, over the keys that any of them sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A product with an optional bias."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, rows: Tensor) -> Tensor:
        return F.linear(rows, self.weight, self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A layer norm, with or without a bias."""

    weight: Tensor
    bias: Tensor | None
    eps: float

    def __call__(self, rows: Tensor) -> Tensor:
        return F.layer_norm(rows, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """The cosines and sines of rotary positions, each [longest text, head size]."""

    cosines: Tensor
    sines: Tensor

    def __call__(self, heads: Tensor) -> Tensor:
        """Rotate [..., length, head size]; the two halves of a head are the two coordinates."""
        length, half = heads.shape[-2], heads.shape[-1] // 2
        turned = torch.cat((-heads[..., half:], heads[..., :half]), dim=-1)
        return heads * self.cosines[:length] + turned * self.sines[:length]


def make_rotation(*, theta: float, head_size: int, length: int) -> Rotation:
    """Return the rotation of positions 0 to `length` - 1 (RoPE, arXiv 2104.09864)."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies).repeat(1, 2)
    return Rotation(cosines=angles.cos(), sines=angles.sin())


def attend(
    query_key_value: Tensor,
    lengths: Sequence[int],
    *,
    num_heads: int,
    rotation: Rotation | None = None,
    window: int | None = None,
) -> Tensor:
    """Attend within each text: packed [tokens, 3 * hidden] to [tokens, hidden], one call for each run of one length.

    With a `window` a token sees tokens up to this many places before and after it.
    """
    hidden = query_key_value.shape[1] // 3
    attended, start = [], 0
    for length, run in groupby(lengths):
        num_texts = len(list(run))
        own = query_key_value[start : start + num_texts * length]
        start += len(own)
        query, key, value = own.view(num_texts, length, 3, num_heads, hidden // num_heads).permute(2, 0, 3, 1, 4)
        if rotation is not None:
            query, key = rotation(query), rotation(key)
        if window is None or window >= length - 1:
            output = F.scaled_dot_product_attention(query, key, value)
        else:
            output = _attend_near(query, key, value, window=window)
        attended.append(output.transpose(1, 2).reshape(-1, hidden))
    return torch.cat(attended)


def _attend_near(query: Tensor, key: Tensor, value: Tensor, *, window: int) -> Tensor:
    """Attend in pieces of the queries, so that a long text costs no more than its length times the window."""
    length = query.shape[2]
    places, outputs = torch.arange(length), []
    for start in range(0, length, _WINDOW_QUERIES):
        end = min(start + _WINDOW_QUERIES, length)
        first, last = max(0, start - window), min(length, end + window)
        is_seen = (places[start:end, None] - places[None, first:last]).abs() <= window
        outputs.append(
            F.scaled_dot_product_attention(
                query[:, :, start:end], key[:, :, first:last], value[:, :, first:last], attn_mask=is_seen
            )
        )
    return torch.cat(outputs, dim=2)
