"""Layout of keys and values in a block of the KV cache on a CPU: products use whole vectors and sum no lanes.

One block under one KV head, `[block_size, head_dim]` in the cache's shape, holds groups of 16 tokens, each of
16 · head_dim elements:

    keys    [head_dim / pair, 16 tokens, pair]
    values  [16 tokens / pair, head_dim, pair]

pair is 2 in a bf16 cache, since a bf16 dot product takes two neighbours per lane, else 1. A block size that is no
multiple of 16, or an odd head in bf16, keeps the plain order [token, head_dim]; attention then rearranges a copy of the
keys and values of each round. Only the write and attention depend on this order: whole blocks may be copied anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types
from numba.extending import overload

from kernels.cpu.runtime.memory import jit, load, store
from kernels.cpu.runtime.vectors import LANES

if TYPE_CHECKING:  # attention is compiled by processes that load no torch
    from torch import Tensor

PLAIN = 1


def group_size(cache: Tensor) -> int:
    """Return how many tokens form a group of a cache `[num_blocks, kv_heads, block_size, head_dim]`: 16, or PLAIN."""
    block_size, head_dim = cache.shape[2:]
    pair = 2 if cache.itemsize == 2 else 1
    return LANES if block_size % LANES == 0 and head_dim % pair == 0 else PLAIN


def pair_of(cache: Any) -> Any:
    """Return how many neighbours a lane of this cache holds: 2 in bf16, else 1."""
    raise NotImplementedError("runs in compiled code only")


@overload(pair_of)
def _pair_of(cache: Any) -> Any:
    pair = 2 if cache.dtype == types.uint16 else 1

    def known(cache: Any) -> Any:
        return pair

    return known


def _move(target: Any, to: Any, source: Any, at: Any) -> None:
    """Copy an element, bit for bit between equal dtypes."""
    raise NotImplementedError("runs in compiled code only")


@overload(_move)
def _move_element(target: Any, to: Any, source: Any, at: Any) -> Any:
    if target.dtype == source.dtype:

        def copy(target: Any, to: Any, source: Any, at: Any) -> None:
            target[to] = source[at]

        return copy

    def convert(target: Any, to: Any, source: Any, at: Any) -> None:
        store(target, to, load(source, at))

    return convert


@jit
def padded(cache: Any, dim: int) -> int:
    """Return how many dimensions a group has room for: an arranged copy of a bf16 cache fills up an odd head."""
    return dim + dim % pair_of(cache)


@jit
def put_key(  # noqa: PLR0917  compiled
    target: Any, start: int, token: int, source: Any, at: int, dim: int
) -> None:
    """Copy the key at source[at] to its place as `token` of the groups that begin at target[start]."""
    pair = pair_of(target)
    whole = dim - dim % pair
    offset = start + token // LANES * LANES * padded(target, dim) + token % LANES * pair
    for d in range(0, whole, pair):
        for half in range(pair):
            _move(target, offset + d * LANES + half, source, at + d + half)
    if whole < dim:
        _move(target, offset + whole * LANES, source, at + whole)
        store(target, offset + whole * LANES + 1, np.float32(0.0))


@jit
def put_value(  # noqa: PLR0917  compiled
    target: Any, start: int, token: int, source: Any, at: int, dim: int
) -> None:
    """Copy the value at source[at] to its place as `token` of the groups that begin at target[start]."""
    pair = pair_of(target)
    offset = start + token // LANES * LANES * padded(target, dim) + token % LANES // pair * pair * dim + token % pair
    for d in range(dim):
        _move(target, offset + d * pair, source, at + d)


@jit
def put_plain(  # noqa: PLR0917  compiled
    target: Any, start: int, token: int, source: Any, at: int, dim: int
) -> None:
    """Copy the key or value at source[at] to its place as `token` of a block in plain order."""
    for d in range(dim):
        _move(target, start + token * dim + d, source, at + d)
