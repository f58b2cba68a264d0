"""Causal attention over a paged KV cache, for any mix of prefill chunks and decodes in one batch.

    out[t, h] = softmax(capped(scale · q[t, h] · K[s, h // group]ᵀ) + mask) · V[s, h // group]

Token j of sequence s sits at position p = context_lens[s] − query_len[s] + j and sees keys in (p − window, p].
capped(x) = soft_cap · tanh(x / soft_cap), or x without a soft cap. A sink is one more logit of a head, neither scaled
nor capped: exp(sinks[h]) joins the softmax's denominator and brings no value.
Accumulation: fp32 online softmax; probabilities are rounded to the value's dtype for the second product on a GPU.
Sources: FlashAttention-2 (Dao 2023, arXiv 2307.08691), PagedAttention (Kwon et al. 2023, arXiv 2309.06180),
split-KV decoding (Flash-Decoding, Dao et al. 2023), soft cap (Gemma 2, arXiv 2408.00118), sinks (gpt-oss, arXiv
2508.10925).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from kernels.cpu.attention import host as cpu_attention
from kernels.cpu.runtime.launch import keep
from kernels.errors import require
from kernels.gpu.attention import paged_attention_triton


def paged_attention(  # noqa: PLR0917  the order is the call order of every paged-attention op
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    *,
    scale: float,
    window: int | None,
    max_query_len: int,
    max_context_len: int,
    num_decodes: int = 0,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend each query token to its own sequence's cached keys; this step's keys and values are already written.

    Shapes: query `[tokens, heads, head_dim]` (last axis contiguous), caches
    `[num_blocks, kv_heads, block_size, head_dim]`, block_tables `[seqs, max_blocks]` int32, query_start `[seqs + 1]`
    int32, context_lens `[seqs]` int32 (cached plus new tokens). `window` is transformers' sliding_window, in tokens,
    itself included; `soft_cap` is above 0; `sinks` `[heads]` are fp32 or of the query's dtype. The first `num_decodes`
    sequences have one query token each, for which there is a faster way; 0 is always right. The caches were written
    from keys of the query's dtype, which decides about their order on a CPU. The result is a new
    `[tokens, heads, head_dim]`; rows of a sequence with context 0 are zero, rows from `query_start[-1]` on are
    unspecified. Raises `KernelInputError`; on the CPU also for a block id out of range.
    """
    _check(query, key_cache, value_cache, block_tables, query_start, context_lens, window)
    if soft_cap is not None or sinks is not None:
        _check_logits(query, soft_cap, sinks)
    run: Callable[..., Tensor]
    if query.is_cuda:
        run = partial(paged_attention_triton, num_decodes=num_decodes)
    elif query.is_cpu and query.dtype in cpu_attention.DTYPES and key_cache.dtype in cpu_attention.DTYPES:
        run = partial(cpu_attention.paged_attention, num_decodes=num_decodes)
    else:
        run = paged_attention_reference
    out = run(
        query,
        key_cache,
        value_cache,
        block_tables,
        query_start,
        context_lens,
        scale=scale,
        window=window,
        max_query_len=max_query_len,
        max_context_len=max_context_len,
        soft_cap=soft_cap,
        sinks=sinks,
    )
    return keep(out)


def _check(  # noqa: PLR0917  private; the tensors in their call order
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    window: int | None,
) -> None:
    """Raise `KernelInputError` for what the kernels cannot take; reads shapes only, never values."""
    _, heads, head_dim = query.shape
    num_seqs = context_lens.shape[0]
    if (
        key_cache.shape == value_cache.shape
        and key_cache.shape[3] == head_dim
        and heads % key_cache.shape[1] == 0
        and query.stride(2) == 1
        and key_cache.dtype == value_cache.dtype
        and key_cache.is_contiguous()
        and value_cache.is_contiguous()
        and block_tables.shape[0] >= num_seqs == query_start.shape[0] - 1
        and block_tables.dtype == query_start.dtype == context_lens.dtype == torch.int32
        and block_tables.stride(1) == query_start.stride(0) == context_lens.stride(0) == 1
        and (window is None or window > 0)
    ):
        return
    require(
        False,
        f"query {query.dtype} {tuple(query.shape)} strides {query.stride()}, caches {key_cache.dtype} "
        f"{tuple(key_cache.shape)} and {value_cache.dtype} {tuple(value_cache.shape)}, block_tables "
        f"{block_tables.dtype} {tuple(block_tables.shape)}, query_start {query_start.dtype} "
        f"{tuple(query_start.shape)}, context_lens {context_lens.dtype} {tuple(context_lens.shape)}, window {window}; "
        "give query [tokens, heads, head_dim] with a contiguous last axis, two contiguous caches "
        "[num_blocks, kv_heads, block_size, head_dim] of one dtype with kv_heads dividing heads, int32 block_tables "
        "[seqs, max_blocks], int32 query_start [seqs + 1], int32 context_lens [seqs], and window None or above 0",
    )


def _check_logits(query: Tensor, soft_cap: float | None, sinks: Tensor | None) -> None:
    """Raise `KernelInputError` for a soft cap or sinks that the kernels cannot take; reads no sink."""
    require(
        soft_cap is None or 0.0 < soft_cap < math.inf,
        f"soft_cap {soft_cap}; give None or a finite number above 0",
    )
    if sinks is None:
        return
    require(
        sinks.shape == query.shape[1:2]
        and sinks.is_contiguous()
        and sinks.dtype in {torch.float32, query.dtype}
        and sinks.device == query.device,
        f"sinks {sinks.dtype} {tuple(sinks.shape)} strides {sinks.stride()} on {sinks.device}, query {query.dtype} "
        f"{tuple(query.shape)} on {query.device}; give None or contiguous sinks [heads], fp32 or of the query's dtype, "
        "on its device",
    )


def paged_attention_reference(  # noqa: PLR0917  the same arguments as paged_attention
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    *,
    scale: float,
    window: int | None,
    max_query_len: int,
    max_context_len: int,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Compute `paged_attention` in plain PyTorch, one sequence at a time, in fp32; the two maxima are not used.

    The caches are in plain order.
    """
    del max_query_len, max_context_len
    output = torch.zeros_like(query, memory_format=torch.contiguous_format)
    bounds = query_start.tolist()
    for sequence, context_len in enumerate(context_lens.tolist()):
        begin, end = bounds[sequence], bounds[sequence + 1]
        if begin == end or context_len == 0:
            continue
        keys = gather_sequence(key_cache, block_tables[sequence], context_len)
        values = gather_sequence(value_cache, block_tables[sequence], context_len)
        output[begin:end] = _attend(
            query[begin:end], keys, values, scale=scale, window=window, soft_cap=soft_cap, sinks=sinks
        )
    return output


def gather_sequence(cache: Tensor, block_table: Tensor, context_len: int) -> Tensor:
    """Copy one sequence out of the paged cache: `[kv_heads, context_len, head_dim]`."""
    num_blocks = -(-context_len // cache.shape[2])
    pages = cache[block_table[:num_blocks].long()]
    return pages.transpose(0, 1).flatten(1, 2)[:, :context_len]


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    query_len, heads, _ = query.shape
    kv_heads, context_len, _ = keys.shape
    # Keys before every row's window are left out, not masked: their blocks may have been given back, and NaN · 0 = NaN.
    reach = 0 if window is None else max(context_len - query_len - window + 1, 0)
    wide_keys = keys[:, reach:].float().repeat_interleave(heads // kv_heads, dim=0)
    wide_values = values[:, reach:].float().repeat_interleave(heads // kv_heads, dim=0)
    scores = torch.einsum("qhd,hkd->hqk", query.float(), wide_keys) * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    key_positions = torch.arange(reach, context_len, device=query.device)
    positions = torch.arange(context_len - query_len, context_len, device=query.device)[:, None]
    visible = key_positions <= positions
    if window is not None:
        visible &= key_positions > positions - window
    scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.float()[:, None, None].expand(heads, query_len, 1)), -1)
    probabilities = scores.softmax(-1)[..., : context_len - reach]
    return torch.einsum("hqk,hkd->qhd", probabilities, wide_values).to(query.dtype)
