"""Attention over a paged KV cache, for any mix of pieces of prompts and decodes in one batch: causal, or ahead too.

    out[t, h] = softmax(capped(scale · q[t, h] · K[s, h // group]ᵀ) + mask) · V[s, h // group]

Token j of sequence s has position p = context_lens[s] − query_len[s] + j and sees keys in (p − window, p + ahead].
capped(x) = soft_cap · tanh(x / soft_cap), or x without a soft cap. A sink is one more logit of a head, neither scaled
nor capped: exp(sinks[h]) is added to the softmax's denominator and has no value.
Accumulation: fp32 online softmax; probabilities are rounded to the value's dtype for the second product on a GPU.
Sources: FlashAttention-2 (Dao 2023, arXiv 2307.08691), PagedAttention (Kwon et al. 2023, arXiv 2309.06180),
split-KV decoding (Flash-Decoding, Dao et al. 2023), soft cap (Gemma 2, arXiv 2408.00118), sinks (gpt-oss, arXiv
2508.10925).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from kernels.cpu.attention import host as cpu_attention
from kernels.cpu.runtime.launch import keep
from kernels.errors import require
from kernels.gpu.attention import paged_attention_triton
from kernels.paged import AttentionRule, LayerCache, PagedStep


def paged_attention(query: Tensor, cache: LayerCache, step: PagedStep, rule: AttentionRule) -> Tensor:
    """Attend each query token to its own sequence's cached keys; this step's keys and values are already written.

    Query `[tokens, heads, head_dim]`, its last axis contiguous. The cache was written from keys of the query's dtype,
    which determines its order on a CPU; slots and positions of the step are not read. The result is a new `[tokens,
    heads, head_dim]`; rows of a sequence with context 0 are zero, rows from `query_start[-1]` on are unspecified.
    Raises `KernelInputError`; on the CPU also for a block id out of range.
    """
    _check(query, cache, step, rule)
    if rule.soft_cap is not None or rule.sinks is not None:
        _check_logits(query, rule)
    run: Callable[[Tensor, LayerCache, PagedStep, AttentionRule], Tensor]
    if query.is_cuda:
        run = paged_attention_triton
    elif query.is_cpu and query.dtype in cpu_attention.DTYPES and cache.keys.dtype in cpu_attention.DTYPES:
        run = cpu_attention.paged_attention
    else:
        run = paged_attention_reference
    return keep(run(query, cache, step, rule))


def _check(query: Tensor, cache: LayerCache, step: PagedStep, rule: AttentionRule) -> None:
    """Raise `KernelInputError` for input that the kernels do not accept; reads shapes only, never values."""
    _, heads, head_dim = query.shape
    keys, values = cache
    block_tables, query_start, context_lens = step.block_tables, step.query_start, step.context_lens
    num_seqs, window = context_lens.shape[0], rule.window
    if (
        keys.shape == values.shape
        and keys.shape[3] == head_dim
        and heads % keys.shape[1] == 0
        and query.stride(2) == 1
        and keys.dtype == values.dtype
        and keys.is_contiguous()
        and values.is_contiguous()
        and block_tables.shape[0] >= num_seqs == query_start.shape[0] - 1
        and block_tables.dtype == query_start.dtype == context_lens.dtype == torch.int32
        and block_tables.stride(1) == query_start.stride(0) == context_lens.stride(0) == 1
        and (window is None or window > 0)
        and (rule.ahead == 0 or not query.is_cuda)
        and (rule.ahead is None or rule.ahead >= 0)
    ):
        return
    require(
        False,
        f"query {query.dtype} {tuple(query.shape)} strides {query.stride()}, caches {keys.dtype} "
        f"{tuple(keys.shape)} and {values.dtype} {tuple(values.shape)}, block_tables "
        f"{block_tables.dtype} {tuple(block_tables.shape)}, query_start {query_start.dtype} "
        f"{tuple(query_start.shape)}, context_lens {context_lens.dtype} {tuple(context_lens.shape)}, window {window}, "
        f"ahead {rule.ahead}; "
        "give query [tokens, heads, head_dim] with a contiguous last axis, two contiguous caches "
        "[num_blocks, kv_heads, block_size, head_dim] of one dtype with kv_heads dividing heads, int32 block_tables "
        "[seqs, max_blocks], int32 query_start [seqs + 1], int32 context_lens [seqs], window None or above 0, and "
        "ahead 0, or on a CPU None or above 0",
    )


def _check_logits(query: Tensor, rule: AttentionRule) -> None:
    """Raise `KernelInputError` for a soft cap or sinks that the kernels do not accept; reads no values of sinks."""
    soft_cap, sinks = rule.soft_cap, rule.sinks
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


def paged_attention_reference(query: Tensor, cache: LayerCache, step: PagedStep, rule: AttentionRule) -> Tensor:
    """Compute `paged_attention` in plain PyTorch, one sequence at a time, in fp32, without the step's host numbers.

    The cache is in plain order.
    """
    output = torch.zeros_like(query, memory_format=torch.contiguous_format)
    bounds = step.query_start.tolist()
    for sequence, context_len in enumerate(step.context_lens.tolist()):
        begin, end = bounds[sequence], bounds[sequence + 1]
        if begin == end or context_len == 0:
            continue
        keys, values = (gather_sequence(part, step.block_tables[sequence], context_len) for part in cache)
        output[begin:end] = _attend(query[begin:end], keys, values, rule)
    return output


def gather_sequence(cache: Tensor, block_table: Tensor, context_len: int) -> Tensor:
    """Copy one sequence out of the paged cache: `[kv_heads, context_len, head_dim]`."""
    num_blocks = -(-context_len // cache.shape[2])
    pages = cache[block_table[:num_blocks].long()]
    return pages.transpose(0, 1).flatten(1, 2)[:, :context_len]


def _attend(query: Tensor, keys: Tensor, values: Tensor, rule: AttentionRule) -> Tensor:
    window, soft_cap, sinks = rule.window, rule.soft_cap, rule.sinks
    query_len, heads, _ = query.shape
    kv_heads, context_len, _ = keys.shape
    # Keys before every row's window are left out, not masked: their blocks may have been reused, and NaN · 0 = NaN.
    reach = 0 if window is None else max(context_len - query_len - window + 1, 0)
    wide_keys = keys[:, reach:].float().repeat_interleave(heads // kv_heads, dim=0)
    wide_values = values[:, reach:].float().repeat_interleave(heads // kv_heads, dim=0)
    scores = torch.einsum("qhd,hkd->hqk", query.float(), wide_keys) * rule.scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    key_positions = torch.arange(reach, context_len, device=query.device)
    positions = torch.arange(context_len - query_len, context_len, device=query.device)[:, None]
    visible = key_positions <= (positions + context_len if rule.ahead is None else positions + rule.ahead)
    if window is not None:
        visible &= key_positions > positions - window
    scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.float()[:, None, None].expand(heads, query_len, 1)), -1)
    probabilities = scores.softmax(-1)[..., : context_len - reach]
    return torch.einsum("hqk,hkd->qhd", probabilities, wide_values).to(query.dtype)
