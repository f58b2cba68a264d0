"""How the work of paged attention is divided into tasks, and where a task's keys are. For compiled CPU code.

A task is a tile of queries under one KV head: the next tokens of one sequence, or one token each of several sequences
(its members, of which a prefill tile has one). A tile processes its keys in rounds of up to 128, and in each round the
members take turns: keys that they share are then read from memory once. Neighbours that share all keys of a round take
one turn together, as many as fit in the registers. Rounds begin at multiples of 128 keys for every tile.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu.attention.products import ROUND_KEYS
from kernels.cpu.attention.words import AT
from kernels.cpu.kv_layout import padded, put_key, put_value
from kernels.cpu.runtime.block import NUM_TASKS
from kernels.cpu.runtime.memory import int32_at, jit
from kernels.cpu.runtime.vectors import LANES

_UNBOUNDED = 1 << 60  # beyond any key


class Tile(NamedTuple):
    """One task: sequences from `sequence` on, query tokens [first, last), rounds [begin, end); may have no token."""

    kv_head: int
    members: int
    sequence: int
    first: int
    last: int
    begin: int
    end: int


@jit
def tile_of(p: Any, task: int) -> Any:
    """Return the tile of a task: prefill tiles come first, and of these the late ones, which see most keys."""
    query_start, num_seqs, kv_heads = int32_at(p[AT.query_start]), p[AT.num_seqs], p[AT.kv_heads]
    tokens_per_tile, decodes, together = p[AT.tile_tokens], p[AT.num_decodes], p[AT.tile_decodes]
    decode_tiles = (decodes + together - 1) // together
    tile, kv_head = (p[NUM_TASKS] - 1 - task) // kv_heads, task % kv_heads
    if tile < decode_tiles:
        first = tile * together
        members, sequence = min(together, decodes - first), first
        last = first + members
    else:
        tile -= decode_tiles
        sequence = _sequence_of(tile, query_start, (decodes, num_seqs), tokens_per_tile)
        index = tile - ((query_start[sequence] - decodes) // tokens_per_tile + sequence - decodes)
        first = query_start[sequence] + index * tokens_per_tile
        members, last = 1, min(first + tokens_per_tile, np.int64(query_start[sequence + 1]))
    begin, end = _UNBOUNDED, 0
    for member in range(members):
        own_begin, own_end = _keys_of(p, Tile(kv_head, members, sequence, first, last, 0, 0), member)
        begin, end = min(begin, own_begin), max(end, own_end)
    rounds = (end + ROUND_KEYS - 1) // ROUND_KEYS
    return Tile(kv_head, members, sequence, first, last, begin // ROUND_KEYS, rounds)


@jit
def _sequence_of(tile: int, query_start: Any, sequences: Any, tokens_per_tile: int) -> int:
    """Find the sequence that owns a tile.

    With query tokens and sequences counted from the first of `sequences` on, s owns those from
    query_start[s] // tokens_per_tile + s on.
    """
    low, high = sequences
    before = low
    while high - low > 1:
        middle = (low + high) // 2
        if (query_start[middle] - before) // tokens_per_tile + middle - before <= tile:
            low = middle
        else:
            high = middle
    return low


@jit
def member_of(p: Any, tile: Any, member: int) -> Any:
    """Return a member of a tile as (sequence, first query token, last + 1, position of the first)."""
    query_start, context_lens = int32_at(p[AT.query_start]), int32_at(p[AT.context_lens])
    sequence, first = tile.sequence + member, tile.first + member
    last = tile.last if tile.members == 1 else first + 1
    return sequence, first, last, first + context_lens[sequence] - query_start[sequence + 1]


@jit
def first_key(p: Any, position: int) -> int:
    """Return the first key that a token sees."""
    return max(position + 1 - p[AT.window], 0)


@jit
def end_of_keys(p: Any, sequence: int, end: int) -> int:
    """Return the last key + 1 that tokens up to the position `end` - 1 see."""
    return min(end + p[AT.ahead], np.int64(int32_at(p[AT.context_lens])[sequence]))


@jit
def _keys_of(p: Any, tile: Any, member: int) -> Any:
    """Return the keys that a member sees, from the start of a group to the last + 1."""
    sequence, first, last, position = member_of(p, tile, member)
    return first_key(p, position) // LANES * LANES, end_of_keys(p, sequence, position + last - first)


@jit
def keys_of_turn(p: Any, tile: Any, turn: Any) -> Any:
    """Return which keys, first and last + 1, are folded in a turn = (round, member)."""
    begin, end = _keys_of(p, tile, turn[1])
    return max(begin, turn[0] * ROUND_KEYS), min(end, (turn[0] + 1) * ROUND_KEYS)


@jit
def first_turn(p: Any, tile: Any) -> Any:
    """Return a tile's first turn; its round is `tile.end` where there are no keys."""
    return _turn_from(p, tile, tile.begin, 0)


@jit
def next_turn(p: Any, tile: Any, turn: Any, members: int) -> Any:
    """Return the turn after this one of so many members; its round is `tile.end` where this was the last."""
    return _turn_from(p, tile, turn[0], turn[1] + members)


@jit
def members_alike(p: Any, tile: Any, turn: Any, most: int) -> int:
    """Count the members, from a turn's own on and at most so many, whose keys of its round are in the same blocks.

    Each sees all 128 of them. With a window that may begin in a round, every member has its own turn.
    """
    start, member = turn[0] * ROUND_KEYS, turn[1]
    last = min(tile.members, member + most)
    if p[AT.window] < 2 * ROUND_KEYS or not _sees_all(p, tile, member, start):
        return 1
    tables, stride, block_size = int32_at(p[AT.block_tables]), p[AT.table_stride], p[AT.block_size]
    row = (tile.sequence + member) * stride
    end = member + 1
    while end < last and _sees_all(p, tile, end, start):
        other = (tile.sequence + end) * stride
        for block in range(start // block_size, (start + ROUND_KEYS - 1) // block_size + 1):
            if tables[other + block] != tables[row + block]:
                return end - member
        end += 1
    return end - member


@jit
def _sees_all(p: Any, tile: Any, member: int, start: int) -> bool:
    _, _, _, position = member_of(p, tile, member)
    return first_key(p, position) <= start and position + 1 >= start + ROUND_KEYS


@jit
def _turn_from(p: Any, tile: Any, number: int, member: int) -> Any:
    while number < tile.end:
        if member == tile.members:
            number, member = number + 1, 0
            continue
        begin, end = keys_of_turn(p, tile, (number, member))
        if begin < end:
            break
        member += 1
    return number, member


@jit
def find_groups(p: Any, place: Any, offsets: Any) -> bool:
    """Note where each group of keys = (sequence, KV head, first, last + 1) lies; False at a block out of range.

    The first key is the first of its group. The last group is named again up to the end of the list, since several are
    scored at once.
    """
    sequence, kv_head, start, end = place
    count, block_size = (end - start + LANES - 1) // LANES, p[AT.block_size]
    index, inside = start // block_size, start % block_size
    for group in range(count):
        offsets[group] = _offset_of(p, sequence, kv_head, index, inside)
        if offsets[group] < 0:
            return False
        inside += LANES
        if inside == block_size:
            index, inside = index + 1, 0
    _fill_up(offsets, count)
    return True


@jit
def arrange_groups(p: Any, place: Any, caches: Any, copies: Any, offsets: Any) -> bool:
    """Copy keys = (sequence, KV head, first, last + 1, first seen) from blocks in plain order, from the first seen on.

    Note where each group lies in the copies; False at a block out of range.
    """
    sequence, kv_head, start, end, seen = place
    dim, block_size = p[AT.head_dim], p[AT.block_size]
    for key in range(max(start, seen), end):
        at = _offset_of(p, sequence, kv_head, key // block_size, key % block_size)
        if at < 0:
            return False
        put_key(copies[0], 0, key - start, caches[0], at, dim)
        put_value(copies[1], 0, key - start, caches[1], at, dim)
    count = (end - start + LANES - 1) // LANES
    for group in range(count):
        offsets[group] = group * LANES * padded(copies[0], dim)
    _fill_up(offsets, count)
    return True


@jit
def _offset_of(p: Any, sequence: int, kv_head: int, index: int, inside: int) -> int:
    """Locate a token of a sequence's block by its index in the table; −1 where the table names no block."""
    block = np.int64(int32_at(p[AT.block_tables])[sequence * p[AT.table_stride] + index])
    if block < 0 or block >= p[AT.num_blocks]:
        return -1
    return ((block * p[AT.kv_heads] + kv_head) * p[AT.block_size] + inside) * p[AT.head_dim]


@jit
def _fill_up(offsets: Any, count: int) -> None:
    for group in range(count, ROUND_KEYS // LANES):
        offsets[group] = offsets[max(count - 1, 0)]
