"""The words of paged attention's parameter block: its tensors, the cache, the step, the rule, and the tile sizes.

Strides count elements, `window` and `ahead` tokens. Without a soft cap `soft_cap` is 0, without sinks (fp32,
`[heads]`) `sinks` is. `num_decodes` sequences with one token each come first. `heads_per_kv` query heads share a KV
head, `tile_tokens` tokens of a sequence form a tile of a prompt, `tile_decodes` sequences one of decodes. `group_size`
is in tokens (kv_layout.py).
"""

from __future__ import annotations

from kernels.cpu.runtime.block import Block

BLOCK = Block(
    """
    query* token_stride head_stride out*
    key_cache* value_cache* num_blocks kv_heads block_size head_dim group_size
    block_tables* table_stride query_start* context_lens* num_seqs num_decodes
    scale:f64 window ahead soft_cap:f64 sinks*
    heads_per_kv tile_tokens tile_decodes
    """
)
AT = BLOCK.at
