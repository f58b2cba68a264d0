"""Rotary position embedding, in place, in the "NeoX" layout (first half pairs with second half).

    (a, b) → (a·cos − b·sin, b·cos + a·sin)    a = head[:rot/2], b = head[rot/2:rot]; the rest of the head is untouched

Accumulation: fp32, rounded once on the way out. Angles come in as a table, so every kind of rope scaling is the
caller's. Source: Su et al. 2021 (arXiv 2104.09864), equation 34.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rope(query: Tensor, key: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """Rotate `query` and `key` in place by the angles of their positions.

    Shapes: query `[tokens, heads, head_dim]`, key `[tokens, kv_heads, head_dim]` (slices of a merged QKV row are
    fine: only the last axis must be contiguous), positions `[tokens]` int64, cos_sin `[max_position, rot_dim]` fp32:
    rot_dim/2 cosines, then rot_dim/2 sines.
    """
    rope_reference(query, key, positions, cos_sin)


def rope_reference(query: Tensor, key: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """Compute `rope` in plain PyTorch."""
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    half = cos.shape[-1]
    for heads in (query, key):
        first, second = heads[..., :half].float(), heads[..., half : 2 * half].float()
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        heads[..., : 2 * half] = rotated.to(heads.dtype)
