"""Tokens of a step whose output is needed; the others only need their keys and values in the last layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.paged import PagedStep

_MIN_SPARED = 128
"""Minimum of tokens without output; for fewer, a separate last layer costs a small model more than it saves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRows:
    """Selected tokens of a step, and their layout as if each were a sequence's only token."""

    rows: Tensor
    """`[rows]` int64: indices of flat tokens."""
    step: PagedStep
    """For attention alone: it has no slots and no positions."""


def asked_rows(step: PagedStep, rows: Tensor) -> AskedRows | None:
    """Return what the last layer needs for `rows` alone; None if the step has hardly any other tokens."""
    if step.positions.shape[0] - rows.shape[0] < _MIN_SPARED:
        return None
    starts = step.query_start
    sequences = torch.searchsorted(starts, rows.to(starts.dtype), right=True) - 1
    tokens_after = starts[sequences + 1] - 1 - rows
    return AskedRows(
        rows=rows,
        step=PagedStep(
            block_tables=step.block_tables[sequences],
            query_start=torch.arange(rows.shape[0] + 1, dtype=starts.dtype, device=starts.device),
            context_lens=(step.context_lens[sequences] - tokens_after).to(starts.dtype),
            slots=step.slots[:0],
            positions=step.positions[:0],
            max_query_len=1,
            max_context_len=step.max_context_len,
            num_decodes=rows.shape[0],
        ),
    )
