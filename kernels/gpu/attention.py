"""The Triton kernels of `paged_attention`: one for every batch, and one that joins the parts of a split decode.

A program owns BLOCK_M rows of one sequence under one KV head: consecutive query tokens times the heads of a GQA group,
packed, so that a tile of keys is loaded once for the whole group. Decodes at the batch's start have a launch of their
own, in tiles of few rows; if there are few, each context is split over several programs (split-KV), and
`_reduce_kernel` joins their fp32 parts. Nothing here reads a tensor on the host or syncs, so launches can be captured
in a CUDA graph; a captured launch serves every context up to the captured `max_context_len`. A sink is the initial
value of a row's online softmax, in the first split only, so it counts once. The soft cap's tanh is computed with exp2,
so its error is absolute: about 2⁻²² · soft_cap in a score. Formula, accumulation and sources: paged_attention.py.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton reads the annotations of its kernels, and only tl.constexpr means something to it)

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels.gpu.backend import jit, launch, next_power_of_2, tl
from kernels.paged import AttentionRule, LayerCache, PagedStep

_LOG2_E = 1.4426950408889634
_MAX_SPLITS = 32
_MIN_KEYS_PER_SPLIT = 256  # a program with fewer keys ends before its loads overlap
_PROGRAMS_PER_PROCESSOR = 4  # an H100 holds five: a decode of heads of 128 takes 38 KB of its shared memory
_NUM_STAGES = 5
"""Keys are read through the block table, so two stages of the pipeline load the block numbers: with 3, Triton (3.6 and
3.9) waits for each tile's keys right after requesting them; with 5, two tiles load while one is computed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Tile sizes of one launch: rows and keys of a tile, padded head size, warps, pipeline depth."""

    block_m: int
    block_n: int
    block_d: int
    num_warps: int
    num_stages: int


def attention_config(*, head_dim: int, group: int, element_bytes: int, max_query_len: int) -> AttentionConfig:
    """Choose the tiles: as few rows as the longest query run fills, and what fits in 163 KiB of shared memory (sm_80).

    Follows the published sizes of FlashAttention-2 and SGLang's extend kernel (128 × 64), and the compiler's report on
    registers and waits; not tuned by measurement. A decode of wide heads takes fewer keys at a time, so that more of
    them fit on a multiprocessor.
    """
    block_d = max(16, next_power_of_2(head_dim))
    row_bytes = block_d * element_bytes
    wide = row_bytes > 256  # fp32, or heads over 128
    most_rows = 64 if wide else 128
    if element_bytes == 4:  # these products run on the ordinary cores and live in registers
        most_rows = 32
    block_m = max(min(most_rows, max(16, next_power_of_2(max_query_len * group))), next_power_of_2(group))
    is_decode = max_query_len == 1
    block_n = 16 if row_bytes > 512 else 32 if wide or (is_decode and row_bytes == 256) else 64
    return AttentionConfig(
        block_m=block_m,
        block_n=block_n,
        block_d=block_d,
        num_warps=8 if block_m >= 128 or (block_m > 16 and (wide or element_bytes == 4)) else 4,
        num_stages=_NUM_STAGES,
    )


def num_splits(*, num_programs: int, max_context_len: int, num_processors: int) -> int:
    """Return how many programs share a decode's context: as many as fit on the device, each with enough keys."""
    filling = -(-_PROGRAMS_PER_PROCESSOR * num_processors // num_programs)
    useful = max(1, max_context_len // _MIN_KEYS_PER_SPLIT)
    limit = min(filling, useful, _MAX_SPLITS)
    return 1 << (limit.bit_length() - 1)


def paged_attention_triton(query: Tensor, cache: LayerCache, step: PagedStep, rule: AttentionRule) -> Tensor:
    """Launch the Triton kernels of `paged_attention`; the arguments are already checked."""
    tokens, heads, head_dim = query.shape
    num_seqs = step.context_lens.shape[0]
    out = torch.empty((tokens, heads, head_dim), dtype=query.dtype, device=query.device)
    if tokens == 0 or num_seqs == 0:
        return out
    num_decodes = num_seqs if step.max_query_len == 1 else step.num_decodes
    if num_decodes:
        _launch(query, cache, step, rule, out, range(num_decodes), max_query_len=1)
    if num_decodes < num_seqs:
        _launch(query, cache, step, rule, out, range(num_decodes, num_seqs), max_query_len=step.max_query_len)
    return out


def _launch(  # noqa: PLR0917  private; the op's arguments, and what each launch has for itself
    query: Tensor,
    cache: LayerCache,
    step: PagedStep,
    rule: AttentionRule,
    out: Tensor,
    sequences: range,
    *,
    max_query_len: int,
) -> None:
    """Attend the queries of some sequences; those before them have one query token each."""
    tokens, heads, head_dim = query.shape
    kv_heads, block_size = cache.keys.shape[1], cache.keys.shape[2]
    first, num_seqs, group = sequences.start, len(sequences), heads // kv_heads
    window, soft_cap, sinks = rule.window, rule.soft_cap, rule.sinks
    config = attention_config(
        head_dim=head_dim, group=group, element_bytes=query.element_size(), max_query_len=max_query_len
    )
    tokens_per_tile = config.block_m // group
    is_decode = max_query_len == 1
    num_tiles = num_seqs if is_decode else (tokens - first) // tokens_per_tile + num_seqs
    splits = 1
    if is_decode and window is None:
        splits = num_splits(
            num_programs=num_tiles * kv_heads,
            max_context_len=step.max_context_len,
            num_processors=_num_processors(query.device),
        )
    parts, stats = out, out  # unread without a split
    if splits > 1:
        parts = torch.empty((num_seqs, heads, splits, head_dim), dtype=torch.float32, device=query.device)
        stats = torch.empty((num_seqs, heads, splits, 2), dtype=torch.float32, device=query.device)
    # With a cap the kernel's scores are 2 · log2(e) · x of tanh(x), else logits in base 2.
    score_scale = rule.scale * _LOG2_E if soft_cap is None else 2.0 * _LOG2_E * rule.scale / soft_cap
    launch(_attention_kernel, (num_tiles, kv_heads, splits))(
        query, cache.keys, cache.values, out, parts, stats,
        step.block_tables, step.query_start, step.context_lens, first, num_seqs,
        score_scale, 0 if window is None else window,
        out if sinks is None else sinks, 0.0 if soft_cap is None else soft_cap * _LOG2_E,
        query.stride(0), query.stride(1), step.block_tables.stride(0),
        KV_HEADS=kv_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, SPLITS=splits,
        IS_DECODE=is_decode, HAS_WINDOW=window is not None, HAS_SINKS=sinks is not None,
        HAS_CAP=soft_cap is not None, TOKENS_PER_TILE=tokens_per_tile,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_D=config.block_d,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    if splits > 1:
        launch(_reduce_kernel, (num_seqs, heads))(
            parts, stats, out, HEADS=heads, HEAD_DIM=head_dim, SPLITS=splits, BLOCK_D=config.block_d, num_warps=4
        )


def _num_processors(device: torch.device) -> int:
    """Count the GPU's multiprocessors (cached by torch, no sync); a CPU, under the interpreter, counts as one."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@jit
def _first_tile(sequence, query_start, first, TOKENS_PER_TILE: tl.constexpr):
    """Number the tiles: a sequence gets at least those it needs, from the count of tokens and sequences before it."""
    return (tl.load(query_start + sequence) - first) // TOKENS_PER_TILE + sequence - first


@jit
def _sequence_of(tile, query_start, first, num_seqs, TOKENS_PER_TILE: tl.constexpr):
    """Find a tile's sequence by bisection of the first tiles; that needs no table made on the host."""
    low = tile * 0 + first  # a value, not a constant: the loop carries it
    high = low + num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        is_left = _first_tile(middle, query_start, first, TOKENS_PER_TILE) <= tile
        low = tl.where(is_left, middle, low)
        high = tl.where(is_left, high, middle)
    return low


@jit
def _load_tile(  # noqa: PLR0917  compiled
    cache, table, positions, end, kv_head, lanes,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Locate `[len(positions), len(lanes)]` elements of one KV head through the block table, and say which exist."""
    is_key = positions < end
    blocks = tl.load(table + positions // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
    rows = ((blocks * KV_HEADS + kv_head) * BLOCK_SIZE + positions % BLOCK_SIZE) * HEAD_DIM
    return cache + rows[:, None] + lanes[None, :], is_key[:, None] & (lanes < HEAD_DIM)[None, :]


@partial(jit, varying=("first", "num_seqs", "table_stride"))
def _attention_kernel(  # noqa: PLR0915, PLR0917  one loop with its state in registers; arguments are positional
    query, key_cache, value_cache, out, parts, stats, block_tables, query_start, context_lens, first, num_seqs,
    scale, window, sinks, cap, query_stride, head_stride, table_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SPLITS: tl.constexpr, IS_DECODE: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SINKS: tl.constexpr,
    HAS_CAP: tl.constexpr, TOKENS_PER_TILE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if IS_DECODE:
        sequence = tile
        first_token = 0
    else:
        sequence = _sequence_of(tile, query_start, first, num_seqs, TOKENS_PER_TILE)
        first_token = (tile - _first_tile(sequence, query_start, first, TOKENS_PER_TILE)) * TOKENS_PER_TILE
    begin_row = tl.load(query_start + sequence)
    query_len = tl.load(query_start + sequence + 1) - begin_row
    if first_token >= query_len:
        return
    context_len = tl.load(context_lens + sequence)
    first_position = context_len - query_len + first_token

    rows = tl.arange(0, BLOCK_M)
    lanes = tl.arange(0, BLOCK_D)
    token = first_token + rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    is_row = (rows < TOKENS_PER_TILE * GROUP) & (token < query_len)
    mask = is_row[:, None] & (lanes < HEAD_DIM)[None, :]
    batch_row = (begin_row + token).to(tl.int64)
    q = tl.load(
        query + batch_row[:, None] * query_stride + head[:, None] * head_stride + lanes[None, :], mask=mask, other=0.0
    )
    positions = context_len - query_len + token

    # The keys that any row of this tile sees, cut into SPLITS runs of whole tiles.
    end = tl.minimum(first_position + TOKENS_PER_TILE, context_len)
    begin = 0
    if HAS_WINDOW:
        begin = tl.maximum(first_position - window + 1, 0) // BLOCK_N * BLOCK_N
    if SPLITS > 1:
        span = tl.cdiv(tl.cdiv(end, BLOCK_N), SPLITS) * BLOCK_N
        begin = split * span
        end = tl.minimum(end, begin + span)

    table = block_tables + sequence.to(tl.int64) * table_stride
    top = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:
        sink = tl.load(sinks + head, mask=is_row, other=-float("inf")).to(tl.float32) * 1.4426950408889634  # log2(e)
        top = tl.where(split == 0, sink, top)
        total = tl.where(split == 0, 1.0, total)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(begin, end, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        in_reach = columns
        if HAS_WINDOW:  # the blocks before the window may have been given back: they are not read
            in_reach = tl.where(columns > first_position - window, columns, end)
        pointers, is_key = _load_tile(key_cache, table, in_reach, end, kv_head, lanes, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
        k = tl.load(pointers, mask=is_key, other=0.0).to(q.dtype)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if HAS_CAP:  # tanh(x) = 1 − 2 / (exp(2x) + 1), which no infinity breaks
            scores = cap - 2.0 * cap / (tl.exp2(scores) + 1.0)
        visible = (columns[None, :] <= positions[:, None]) & (columns < end)[None, :]
        if HAS_WINDOW:
            visible &= columns[None, :] > positions[:, None] - window
        scores = tl.where(visible, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        anchor = tl.where(new_top == -float("inf"), 0.0, new_top)  # a row that has seen no key yet: no inf − inf
        shares = tl.exp2(scores - anchor[:, None])
        shrink = tl.exp2(top - anchor)
        total = total * shrink + tl.sum(shares, axis=1)
        pointers, is_key = _load_tile(value_cache, table, in_reach, end, kv_head, lanes, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
        v = tl.load(pointers, mask=is_key, other=0.0).to(q.dtype)
        acc = acc * shrink[:, None] + tl.dot(shares.to(q.dtype), v, input_precision="ieee")
        top = new_top

    heads_total: tl.constexpr = KV_HEADS * GROUP
    out_row = batch_row * heads_total + head
    if SPLITS > 1:
        part_row = out_row * SPLITS + split
        tl.store(parts + part_row[:, None] * HEAD_DIM + lanes[None, :], acc, mask=mask)
        tl.store(stats + part_row * 2, top, mask=is_row)
        tl.store(stats + part_row * 2 + 1, total, mask=is_row)
    else:
        share = 1.0 / tl.where(total == 0.0, 1.0, total)  # context 0 (a padded row): zeros
        result = (acc * share[:, None]).to(out.dtype.element_ty)
        tl.store(out + out_row[:, None] * HEAD_DIM + lanes[None, :], result, mask=mask)


@jit
def _reduce_kernel(  # noqa: PLR0917  a kernel's arguments are positional
    parts, stats, out,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)
    splits = tl.arange(0, SPLITS)
    lanes = tl.arange(0, BLOCK_D)
    tops = tl.load(stats + (row * SPLITS + splits) * 2)
    totals = tl.load(stats + (row * SPLITS + splits) * 2 + 1)
    top = tl.max(tops, axis=0)
    anchor = tl.where(top == -float("inf"), 0.0, top)
    weights = tl.exp2(tops - anchor)
    total = tl.sum(weights * totals, axis=0)
    pointers = parts + (row * SPLITS + splits)[:, None] * HEAD_DIM + lanes[None, :]
    mask = (lanes < HEAD_DIM)[None, :] & (weights > 0.0)[:, None]
    acc = tl.sum(tl.load(pointers, mask=mask, other=0.0) * weights[:, None], axis=0)
    result = acc / tl.where(total == 0.0, 1.0, total)
    tl.store(out + row * HEAD_DIM + lanes, result.to(out.dtype.element_ty), mask=lanes < HEAD_DIM)
