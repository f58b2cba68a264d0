"""A step through a decoder's layers, at once or one by one, over a cache of random numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.models.decoder import Decoder
from engine.models.step_model import KvCache, StepTensors
from kernels.paged import LayerCache, PagedStep

BLOCK_SIZE = 4


def mixed_step() -> StepTensors:
    """A prefill of 13 tokens, a decode at position 9, a row that writes nothing."""
    positions = [*range(13), 9, 0]
    slots = [*range(BLOCK_SIZE, BLOCK_SIZE + 13), 5 * BLOCK_SIZE + 9, -1]
    return StepTensors(
        token_ids=torch.arange(15) * 7 % 256,
        paged=PagedStep(
            block_tables=torch.tensor([[1, 2, 3, 4], [5, 6, 7, 0], [0, 0, 0, 0]], dtype=torch.int32),
            query_start=torch.tensor([0, 13, 14, 15], dtype=torch.int32),
            context_lens=torch.tensor([13, 10, 1], dtype=torch.int32),
            slots=torch.tensor(slots),
            positions=torch.tensor(positions),
            max_query_len=13,
            max_context_len=13,
        ),
    )


def cache_of(decoder: Decoder, dtype: torch.dtype = torch.bfloat16) -> KvCache:
    generator, config = torch.Generator().manual_seed(1), decoder.config
    shape = (8, config.num_kv_heads, BLOCK_SIZE, config.head_dim)
    return [
        LayerCache(*(torch.randn(shape, generator=generator).to(dtype) for _ in range(2)))
        for _ in range(config.num_layers)
    ]


@torch.inference_mode()
def run(decoder: Decoder, cache: KvCache, *, at_once: bool) -> list[Tensor]:
    """Return the two results, the logits and the caches after the step."""
    kept = decoder._at_once
    if not at_once:
        decoder._at_once = None
    try:
        x, residual = decoder.forward(mixed_step(), cache)
        return [x, residual, decoder.logits(x, residual), *(tensor for pair in cache for tensor in pair)]
    finally:
        decoder._at_once = kept
