"""Lay out whole texts, end to end, as one step over a paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.paged import PagedStep

BLOCK_SIZE = 16
"""The size of a block of tokens for attention on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStep:
    """Texts, and the blocks that they write: whole ones for each text, from block 0 on."""

    token_ids: Tensor
    """`[tokens]` int64."""
    paged: PagedStep
    num_blocks: int

    @classmethod
    def of(cls, texts: Sequence[Tensor]) -> TextStep:
        """Lay out texts, each its token ids `[length]` int64, at least one."""
        lengths = torch.tensor([len(text) for text in texts])
        ends, counts = lengths.cumsum(0), (lengths + BLOCK_SIZE - 1) // BLOCK_SIZE
        first_blocks, longest, num_blocks = counts.cumsum(0) - counts, int(lengths.max()), int(counts.sum())
        positions = torch.arange(int(ends[-1])) - (ends - lengths).repeat_interleave(lengths)
        paged = PagedStep(
            # The last blocks of a text with fewer blocks than another are never read.
            block_tables=(first_blocks[:, None] + torch.arange(int(counts.max()))).clamp(max=num_blocks - 1).int(),
            query_start=torch.cat((lengths.new_zeros(1), ends)).int(),
            context_lens=lengths.int(),
            slots=first_blocks.repeat_interleave(lengths) * BLOCK_SIZE + positions,
            positions=positions,
            max_query_len=longest,
            max_context_len=longest,
        )
        return cls(token_ids=torch.cat(list(texts)), paged=paged, num_blocks=num_blocks)
