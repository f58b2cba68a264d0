"""Made-up steps and sampling parameters that a runner runs before there are requests, to compile and to measure.

Independent of device and model.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from engine.grammars.masks import RowMasks
from engine.loop.batch import StepArrays
from engine.sampling.edits import edits_of_every_kind
from engine.sampling.table import SamplingRows, neutral_rows
from engine.scheduling.blocks import NULL_BLOCK


def prompt_step(counts: list[int], *, block_size: int, num_sampled: int) -> StepArrays:
    """Return a step of prompts of these lengths that writes nothing and reads the null block."""
    lens = np.array(counts, dtype=np.int32)
    longest, total = int(lens.max()), int(lens.sum())
    return StepArrays(
        token_ids=np.zeros(total, dtype=np.int64),
        positions=np.concatenate([np.arange(count, dtype=np.int64) for count in counts]),
        slots=np.full(total, -1, dtype=np.int64),
        block_tables=np.full((len(counts), -(-longest // block_size)), NULL_BLOCK, dtype=np.int32),
        query_start=np.concatenate(([0], np.cumsum(lens))).astype(np.int32),
        context_lens=lens,
        max_query_len=longest,
        max_context_len=longest,
        num_decodes=0,
        sampled_rows=np.arange(min(num_sampled, total), dtype=np.int64),
        pending_rows=np.zeros(0, dtype=np.int64),
        pending_serials=np.zeros(0, dtype=np.int64),
    )


def powers_of_two(first: int, last: int) -> list[int]:
    """Return `first`, a power of two, and its doubles up to `last`."""
    return [first << power for power in range((last // first).bit_length())]


def rows_of_every_kind(count: int, masks: RowMasks) -> tuple[SamplingRows, SamplingRows]:
    """Return parameters that run every path of the sampler: with all filters, edits and masks, and without any."""
    plain = neutral_rows(count)
    return plain, replace(
        plain,
        top_p=np.full(count, 0.9, dtype=np.float32),
        min_p=np.full(count, 0.01, dtype=np.float32),
        num_logprobs=np.full(count, 5, dtype=np.int64),
        edits=edits_of_every_kind(count),
        masks=masks,
    )
