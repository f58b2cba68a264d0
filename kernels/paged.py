"""Arguments of the ops over a paged KV cache: one layer's cache, one step, one layer's rule.

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
    """The layout of one step's tokens, the same for every layer. Numbers are on the host, so that no launch waits."""

    block_tables: Tensor
    """`[seqs or more, max_blocks]` int32: the blocks of each sequence, in order."""
    query_start: Tensor
    """`[seqs + 1]` int32: each sequence's first token, and the end of the last sequence."""
    context_lens: Tensor
    """`[seqs]` int32: number of cached tokens and those of this step."""
    slots: Tensor
    """`[tokens]` int64: block_id · block_size + offset, all different; −1 writes nothing."""
    positions: Tensor
    """`[tokens]` int64: rows of the table of angles."""
    max_query_len: int
    """At least the largest number of tokens of a sequence in this step."""
    max_context_len: int
    """At least the longest context."""
    num_decodes: int = 0
    """This many sequences come first with one token each, which have a faster path; 0 is always correct."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRule:
    """How one layer changes its logits, and which keys a token sees."""

    scale: float
    """Factor for the product of query and key."""
    window: int | None = None
    """transformers' sliding_window: this many tokens are seen, the own one included; None: all before it."""
    ahead: int | None = 0
    """This many of a sequence's cached tokens after the own one are seen too; None: all. On a GPU only 0."""
    soft_cap: float | None = None
    """Above 0: x becomes soft_cap · tanh(x / soft_cap)."""
    in_float32: bool = False
    """Multiply bf16 queries and a bf16 cache in fp32 even if a CPU without AMX has bf16 dot products, which gives
    other bits; a GPU ignores it.
    """
    sinks: Tensor | None = None
    """`[heads]`, contiguous, fp32 or of the query's dtype: one more logit per head, without a value."""
