"""Attention of a tile of query tokens over paged keys, for compiled CPU code.

A tile processes its keys in rounds of up to 128, with 1 to 4 rows at a time, or 1 to 16 by AMX (query heads of a token,
or of neighbouring tokens if few share a KV head): scores, a step of online softmax (base 2), values. Rounds begin at
multiples of 128 keys, so a row's result depends only on its token, as long as keys and values are finite. By AMX, and
by bf16 dot products (units.py), both products are of bf16 with fp32 sums, and the shares are rounded to bf16 (before
they are added up, so that they sum to 1); else everything is fp32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu.attention.logits import cap_scores, first_state, soft_cap_of
from kernels.cpu.attention.products import MAX_ROWS, ROUND_KEYS
from kernels.cpu.attention.softmax import soften
from kernels.cpu.attention.tasks import (
    arrange_groups,
    find_groups,
    first_key,
    first_turn,
    keys_of_turn,
    member_of,
    members_alike,
    next_turn,
    tile_of,
)
from kernels.cpu.attention.units import add_values, keep_tiles, operand_at, rows_at_once, score_keys
from kernels.cpu.attention.words import AT
from kernels.cpu.kv_layout import PLAIN
from kernels.cpu.runtime.amx import TILE_ROWS
from kernels.cpu.runtime.block import NUM_TASKS
from kernels.cpu.runtime.memory import (
    bits_to_float64,
    element,
    fetch_add,
    float32_at,
    int64_at,
    jit,
    jit_once,
    load,
    pointer_like,
    store,
)
from kernels.cpu.runtime.vectors import LANES, PAIRED_LANES

_LOG2_E = 1.4426950408889634
_ROUND_GROUPS = ROUND_KEYS // LANES
_LINE_BYTES = 64


@jit
def _padded(dim: int) -> int:
    return (dim + PAIRED_LANES - 1) // PAIRED_LANES * PAIRED_LANES


class Scratch(NamedTuple):
    """Addresses of a thread's scratch memory, and its end.

    For a round: the offsets of its groups, and those of the next; copies of its keys and values, if blocks are in plain
    order. For the current rows: scores, shares, factors, spans. For all rows of the tile: states, queries, sums. And
    the number of rows that AMX's tiles have the shapes for; the unit that computes the products (units.py).
    """

    offsets: int
    ahead: int
    scores: int
    shares: int
    factors: int
    spans: int
    shape: int
    queries: int
    sums: int
    key_copies: int
    value_copies: int
    states: int
    end: int
    unit: bool | int | None


@jit
def scratch_of(p: Any, start: int, unit: bool | int | None) -> Any:
    """Cut scratch that begins at an address, best that of a cache line."""
    rows = p[AT.heads_per_kv] * max(p[AT.tile_tokens], p[AT.tile_decodes])
    queries_bytes = 4 * rows * _padded(p[AT.head_dim])
    copies_bytes = 4 * ROUND_KEYS * (p[AT.head_dim] + 1) if p[AT.group_size] == PLAIN else 0
    ahead = start + 8 * _ROUND_GROUPS
    scores = ahead + 8 * _ROUND_GROUPS
    shares = scores + 4 * TILE_ROWS * ROUND_KEYS
    factors = shares + 4 * TILE_ROWS * ROUND_KEYS
    spans = factors + 4 * TILE_ROWS
    shape = spans + 16 * TILE_ROWS
    queries = shape + _LINE_BYTES
    sums = queries + queries_bytes
    key_copies = sums + queries_bytes
    value_copies = key_copies + copies_bytes
    states = value_copies + copies_bytes
    return Scratch(
        start, ahead, scores, shares, factors, spans, shape, queries, sums, key_copies, value_copies, states,
        states + 8 * rows, unit,
    )  # fmt: skip


@jit_once
def attend_tile(p: Any, pointers: Any, tile: Any, scratch: Any) -> Any:
    """Attend a tile; return whether all block ids were in range, and the next task taken.

    The next task is taken before the last round, so that its first keys can be fetched meanwhile.
    """
    query, keys, values, out = pointers
    offsets, ahead, is_plain = scratch.offsets, scratch.ahead, p[AT.group_size] == PLAIN
    held_keys = pointer_like(keys, scratch.key_copies) if is_plain else keys
    held_values = pointer_like(values, scratch.value_copies) if is_plain else values
    turn, next_task = first_turn(p, tile), np.int64(-1)
    is_right = is_plain or turn[0] == tile.end or find_groups(p, _place_of(p, tile, turn), int64_at(offsets))
    _begin_rows(p, (query, keys), tile, scratch)
    most = rows_at_once(scratch.unit, ()) // p[AT.heads_per_kv]
    while is_right and turn[0] < tile.end:
        members = members_alike(p, tile, turn, most)
        coming = next_turn(p, tile, turn, members)
        is_ahead = False
        if coming[0] == tile.end:
            next_task = fetch_add(p, 1)
            is_ahead = _find_first_groups(p, next_task, int64_at(ahead))
        elif not is_plain:
            is_ahead = is_right = find_groups(p, _place_of(p, tile, coming), int64_at(ahead))
        if is_plain:
            place = (*_place_of(p, tile, turn), first_key(p, member_of(p, tile, turn[1])[3]))
            is_right = arrange_groups(p, place, (keys, values), (held_keys, held_values), int64_at(offsets))
        if is_right:
            rounds = int64_at(offsets), int64_at(ahead if is_ahead else offsets)
            _fold_turn(p, (query, held_keys, held_values), (tile, turn, members), rounds, scratch)
        turn, offsets, ahead = coming, ahead, offsets
    _end_rows(p, out, tile, scratch)
    if next_task < 0:
        next_task = fetch_add(p, 1)
    return is_right, next_task


@jit
def _place_of(p: Any, tile: Any, turn: Any) -> Any:
    """Return a turn's keys as (sequence, KV head, first, last + 1)."""
    begin, end = keys_of_turn(p, tile, turn)
    return tile.sequence + turn[1], tile.kv_head, begin, end


@jit
def _find_first_groups(p: Any, task: int, offsets: Any) -> bool:
    """Note where a coming task's first keys lie, and say whether it has some; its own errors are found in its turn."""
    if task >= p[NUM_TASKS] or p[AT.group_size] == PLAIN:
        return False
    tile = tile_of(p, task)
    if tile.first >= tile.last:
        return False
    turn = first_turn(p, tile)
    return turn[0] < tile.end and find_groups(p, _place_of(p, tile, turn), offsets)


@jit
def _begin_rows(p: Any, pointers: Any, tile: Any, scratch: Any) -> None:
    """Copy the tile's queries, and let its rows start with nothing."""
    query, keys = pointers
    queries = operand_at(scratch.unit, query, keys, scratch.queries)
    sums, states = float32_at(scratch.sums), float32_at(scratch.states)
    group, dim = p[AT.heads_per_kv], p[AT.head_dim]
    padded = _padded(dim)
    for token in range(tile.last - tile.first):
        for head in range(group):
            row, own = token * group + head, tile.kv_head * group + head
            at = (tile.first + token) * p[AT.token_stride] + own * p[AT.head_stride]
            for d in range(dim):
                store(queries, row * padded + d, load(query, at + d))
            for d in range(dim, padded):
                store(queries, row * padded + d, np.float32(0.0))
            for d in range(padded):
                sums[row * padded + d] = np.float32(0.0)
            states[2 * row], states[2 * row + 1] = first_state(p, own)


@jit_once
def _fold_turn(p: Any, pointers: Any, place: Any, rounds: Any, scratch: Any) -> None:
    """Fold the keys of a turn into its members' rows, some at a time; rounds = (offsets, those of the next)."""
    tile, turn, members = place
    _, first, last, position = member_of(p, tile, turn[1])
    start, stop = keys_of_turn(p, tile, turn)
    if members > 1:  # each sees the whole round, as the last tokens of one sequence would from its last key on
        last, position = first + members, stop - 1
    group, before = p[AT.heads_per_kv], first - tile.first
    most = rows_at_once(scratch.unit, ())
    together, parts = max(most // group, 1), (group + most - 1) // most
    for token in range(0, last - first, together):
        count = min(last - first - token, together)
        low = max(first_key(p, position + token) - start, 0)
        high = min(position + token + count + p[AT.ahead], stop) - start
        if low >= high:
            continue
        for part in range(parts):
            head = part * group // parts
            heads = (part + 1) * group // parts - head
            run = (before + token) * group + head, count * heads, position - start - before
            _fold_rows(p, (*pointers, *rounds), run, (low, high), scratch)


@jit_once
def _fold_rows(p: Any, pointers: Any, run: Any, span: Any, scratch: Any) -> None:
    """Fold the keys span = [low, high) of a round into a run of rows; each takes those that it sees.

    run = (first row, number of rows, position of row 0 of the tile, counted from the round's first key).
    """
    query, keys, values, offsets, ahead = pointers
    first, rows, position = run
    low, high = span
    group, dim, window = p[AT.heads_per_kv], p[AT.head_dim], p[AT.window]
    padded, begin, end = _padded(dim), low // LANES, (high + LANES - 1) // LANES
    asked = element(operand_at(scratch.unit, query, keys, scratch.queries), first * padded)
    scores, shares = float32_at(scratch.scores), operand_at(scratch.unit, query, keys, scratch.shares)
    factors, spans = float32_at(scratch.factors), int64_at(scratch.spans)
    sums, states = float32_at(scratch.sums + 4 * first * padded), float32_at(scratch.states + 8 * first)
    scale, soft_cap = bits_to_float64(p[AT.scale]), soft_cap_of(p)
    base_2 = np.float32(_LOG2_E if soft_cap > 0.0 else scale * _LOG2_E)  # a cap is put on scaled scores
    keep_tiles(scratch.unit, (int64_at(scratch.shape), rows))
    score_keys(scratch.unit, (rows, asked, padded, keys, offsets, ahead, begin, end, dim, scores))
    for row in range(rows):
        own = position + (first + row) // group
        spans[2 * row] = max(own + 1 - window, low)
        spans[2 * row + 1] = max(min(own + 1 + p[AT.ahead], high), spans[2 * row])
        if soft_cap > 0.0:
            seen, own_scores = (begin * LANES, end * LANES), element(scores, row * ROUND_KEYS)
            cap_scores(own_scores, seen, np.float32(scale / soft_cap), np.float32(soft_cap))
    for row in range(0, rows, MAX_ROWS):
        key = row * ROUND_KEYS
        soften(
            min(rows - row, MAX_ROWS), element(scores, key), element(shares, key), begin, end, element(spans, 2 * row),
            base_2, element(states, 2 * row), element(factors, row),
        )  # fmt: skip
    add_values(scratch.unit, (rows, shares, values, offsets, ahead, low, high, sums, padded, factors, dim))


@jit
def _end_rows(p: Any, out: Any, tile: Any, scratch: Any) -> None:
    sums, states = float32_at(scratch.sums), float32_at(scratch.states)
    kv_heads, group, dim = p[AT.kv_heads], p[AT.heads_per_kv], p[AT.head_dim]
    padded = _padded(dim)
    for token in range(tile.last - tile.first):
        for head in range(group):
            row = token * group + head
            start = (((tile.first + token) * kv_heads + tile.kv_head) * group + head) * dim
            total = states[2 * row + 1]
            share = np.float32(1.0) / total if total != np.float32(0.0) else np.float32(0.0)
            for d in range(dim):
                store(out, start + d, sums[row * padded + d] * share)
