"""What travels to the ops over a paged KV cache: one layer's cache, one step, one layer's rule. Holds no arithmetic.

Nothing here reads a tensor's values, so a step can be part of a captured CUDA graph and of a recorded CPU program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class LayerCache(NamedTuple):
    """One layer's keys and values, each `[num_blocks, kv_heads, block_size, head_dim]`, contiguous, of one dtype."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedStep:
    """Where one step's tokens lie, for every layer alike. The numbers are on the host, so that no launch waits."""

    block_tables: Tensor
    """`[seqs or more, max_blocks]` int32: the blocks of each sequence, in order."""
    query_start: Tensor
    """`[seqs + 1]` int32: each sequence's first token, and where the last sequence ends."""
    context_lens: Tensor
    """`[seqs]` int32: cached tokens and those of this step."""
    slots: Tensor
    """`[tokens]` int64: block_id · block_size + offset, no two alike; −1 writes nothing."""
    positions: Tensor
    """`[tokens]` int64: rows of the table of angles."""
    max_query_len: int
    """At least the most tokens that a sequence has in this step."""
    max_context_len: int
    """At least the longest context."""
    num_decodes: int = 0
    """So many sequences come first with one token each, for which there is a faster way; 0 is always right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRule:
    """What one layer does to its logits, and which keys a token sees."""

    scale: float
    """Times the product of query and key."""
    window: int | None = None
    """transformers' sliding_window: so many tokens are seen, the own one included; None: all before it."""
    soft_cap: float | None = None
    """Above 0: x becomes soft_cap · tanh(x / soft_cap)."""
    in_float32: bool = False
    """Multiply bf16 queries and a bf16 cache in fp32 where a CPU without AMX could take bf16 dot products, and so has
    other bits; a GPU does not look at it.
    """
    sinks: Tensor | None = None
    """`[heads]`, contiguous, fp32 or of the query's dtype: one more logit a head that brings no value."""
