"""The words of paged attention's parameter block (launch.py) by name, in their order. Strides count elements."""

from __future__ import annotations

from kernels.cpu.runtime.launch import FIRST_WORD

# Addresses.
QUERY, KEY_CACHE, VALUE_CACHE, OUT, BLOCK_TABLES, QUERY_START, CONTEXT_LENS = range(FIRST_WORD, FIRST_WORD + 7)

# Sizes. HEADS_PER_KV query heads share a KV head.
NUM_SEQS, KV_HEADS, HEADS_PER_KV, HEAD_DIM, BLOCK_SIZE, NUM_BLOCKS, TABLE_STRIDE = range(CONTEXT_LENS + 1, 17)

# WINDOW in tokens; SCALE as float64 bits; TILE_TOKENS of a sequence make a tile of a prompt.
WINDOW, TOKEN_STRIDE, HEAD_STRIDE, SCALE, TILE_TOKENS = range(TABLE_STRIDE + 1, 22)

# SOFT_CAP as float64 bits, 0 without one; SINKS the address of fp32 sinks `[heads]`, 0 without them.
SOFT_CAP, SINKS = range(TILE_TOKENS + 1, 24)

# GROUP_SIZE in tokens (cpu_kv_layout.py); NUM_DECODES sequences come first with a token each, TILE_DECODES make a tile.
GROUP_SIZE, NUM_DECODES, TILE_DECODES = range(SINKS + 1, 27)
