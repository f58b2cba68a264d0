"""How the work of paged attention is cut into tasks, and where a task's keys lie. For compiled CPU code; no arithmetic.

A task is one query tile of one sequence under one KV head. The words of the parameter block from 3 on: addresses of
query, key cache, value cache, out, block_tables, query_start and context_lens (3 to 9); num_seqs, kv_heads, query heads
of a KV head, head_dim, block_size, num_blocks, stride of block_tables (10 to 16); window, strides of a query token and
of a query head, scale as float64 bits, query tokens of a tile (17 to 21); soft cap and sinks (22 and 23, see
cpu_attention_logits.py). Strides count elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu_attention_vectors import ROUND_KEYS
from kernels.cpu_memory import int32_at, jit
from kernels.cpu_parallel import NUM_TASKS
from kernels.cpu_vectors import LANES


@jit
def tile_of(p: Any, task: int) -> Any:
    """Return a task as (sequence, KV head, first query token, last + 1, position of the first); may hold no token."""
    query_start, context_lens = int32_at(p[8]), int32_at(p[9])
    kv_heads, tokens_per_tile = p[11], p[21]
    tile, kv_head = (p[NUM_TASKS] - 1 - task) // kv_heads, task % kv_heads  # late tiles see most keys: start there
    sequence = _sequence_of(tile, query_start, p[10], tokens_per_tile)
    index = tile - (query_start[sequence] // tokens_per_tile + sequence)
    first = query_start[sequence] + index * tokens_per_tile
    last = min(first + tokens_per_tile, np.int64(query_start[sequence + 1]))
    return sequence, kv_head, first, last, first + context_lens[sequence] - query_start[sequence + 1]


@jit
def _sequence_of(tile: int, query_start: Any, num_seqs: int, tokens_per_tile: int) -> int:
    """Find the sequence that owns a tile, where sequence s owns those from query_start[s] // tokens_per_tile + s on."""
    low, high = 0, num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        if query_start[middle] // tokens_per_tile + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@jit
def keys_of(p: Any, position: int) -> Any:
    """Return the keys that a token sees, as first and last + 1, and how many it takes a round: even parts."""
    begin, end = max(position + 1 - p[17], 0), position + 1
    count = max(end - begin, 1)
    rounds = (count + ROUND_KEYS - 1) // ROUND_KEYS
    return begin, end, ((count + rounds - 1) // rounds + LANES - 1) // LANES * LANES


@jit
def find_keys(p: Any, place: Any, offsets: Any) -> bool:
    """Note where each key of a round = (sequence, KV head, first key, number) lies; False at a block id out of range.

    The lanes behind the last key, up to a whole vector, read it again.
    """
    tables = int32_at(p[7])
    kv_heads, dim, block_size, num_blocks, table_stride = p[11], p[13], p[14], p[15], p[16]
    sequence, kv_head, start, count = place
    n = 0
    while n < count:
        index, inside = (start + n) // block_size, (start + n) % block_size
        block = np.int64(tables[sequence * table_stride + index])
        if block < 0 or block >= num_blocks:
            return False
        base = ((block * kv_heads + kv_head) * block_size + inside) * dim
        held = min(block_size - inside, count - n)
        for i in range(held):
            offsets[n + i] = base + i * dim
        n += held
    for i in range(max(count, 0), (count + LANES - 1) // LANES * LANES):
        offsets[i] = offsets[count - 1]
    return True
