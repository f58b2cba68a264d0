"""Flat arrays of a step's plan: token ids, positions, slots, block tables, rows to sample. numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence, row_of

_COLUMNS_AT_ONCE = 8

_Int32 = npt.NDArray[np.int32]
_Int64 = npt.NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class StepArrays:
    """One step's inputs on the host: those of `StepTensors` and its `PagedStep`, and the flat rows to sample."""

    token_ids: _Int64
    """Placeholders in `pending_rows`."""
    positions: _Int64
    """Rows of the model's table of angles."""
    slots: _Int64
    block_tables: _Int32
    query_start: _Int32
    context_lens: _Int32
    max_query_len: int
    max_context_len: int
    num_decodes: int
    sampled_rows: _Int64
    pending_rows: list[int]
    pending_sequences: list[Sequence]
    """The sequences whose tokens in `pending_rows` are still on the device."""


def build_arrays(
    plan: StepPlan, block_tables: _Int32, *, block_size: int, angles_change_after: int | None = None
) -> StepArrays:
    """Lay the plan's tokens out flat, sequence after sequence.

    With `angles_change_after` the table of angles has that many rows for short sequences, followed by those of long
    ones.
    """
    token_ids, pending_rows, pending_sequences = _flat_tokens(plan)
    starts = np.array(plan.starts, dtype=np.int64)
    rows = np.array(list(map(row_of, plan.sequences)), dtype=np.int64)
    max_query_len = max(plan.counts)
    if max_query_len == 1:
        counts: _Int64 | int = 1
        num_decodes, owners, positions = len(rows), rows, starts
        query_start = np.arange(num_decodes + 1, dtype=np.int32)
    else:
        counts = np.array(plan.counts, dtype=np.int64)
        query_start = np.zeros(len(counts) + 1, dtype=np.int32)
        np.cumsum(counts, out=query_start[1:])
        num_decodes, owners = int(np.argmax(counts > 1)), np.repeat(rows, counts)
        positions = np.arange(query_start[-1]) + np.repeat(starts - query_start[:-1], counts)
    columns, offsets = np.divmod(positions, block_size)
    slots = block_tables[owners, columns].astype(np.int64) * block_size + offsets
    if angles_change_after is not None:
        firsts = [angles_change_after if sequence.has_long_angles else 0 for sequence in plan.sequences]
        positions = positions + np.repeat(firsts, counts)
    context_lens = (starts + counts).astype(np.int32)
    max_context_len = int(context_lens.max())
    return StepArrays(
        token_ids=np.array(token_ids, dtype=np.int64),
        positions=positions,
        slots=slots,
        block_tables=block_tables[rows, : _num_columns(-(-max_context_len // block_size))],
        query_start=query_start,
        context_lens=context_lens,
        max_query_len=max_query_len,
        max_context_len=max_context_len,
        num_decodes=num_decodes,
        sampled_rows=_sampled_rows(plan, query_start),
        pending_rows=pending_rows,
        pending_sequences=pending_sequences,
    )


def _flat_tokens(plan: StepPlan) -> tuple[list[int], list[int], list[Sequence]]:
    """Return the plan's tokens, the rows of those that are still on the device, and their sequences."""
    if max(plan.counts) == 1 == min(plan.num_sampled):  # in most steps: the newest token of each sequence
        pending = [(row, sequence) for row, sequence in enumerate(plan.sequences) if sequence.num_pending]
        newest = [sequence.last_token_id for sequence in plan.sequences]
        return newest, [row for row, _ in pending], [sequence for _, sequence in pending]
    token_ids: list[int] = []
    pending_rows: list[int] = []
    pending_sequences: list[Sequence] = []
    for sequence, start, count in zip(plan.sequences, plan.starts, plan.counts, strict=True):
        if sequence.num_pending and start + count == sequence.num_tokens:
            token_ids.extend(sequence.token_ids[start:])
            pending_rows.append(len(token_ids))
            pending_sequences.append(sequence)
            token_ids.append(0)
        elif start + count == sequence.num_tokens and count == 1:
            token_ids.append(sequence.last_token_id)
        else:
            token_ids.extend(sequence.token_ids[start : start + count])
            token_ids.extend(sequence.draft_token_ids[: max(0, start + count - sequence.num_tokens)])
    return token_ids, pending_rows, pending_sequences


def _num_columns(num_blocks: int) -> int:
    """Round up the width of the block tables: a shape that rarely changes needs fewer graph recordings."""
    return -(-num_blocks // _COLUMNS_AT_ONCE) * _COLUMNS_AT_ONCE


def _sampled_rows(plan: StepPlan, query_start: _Int32) -> _Int64:
    """Return the last `num_sampled` rows of each sequence, in order."""
    if sum(plan.num_sampled) == query_start[-1]:
        return np.arange(query_start[-1], dtype=np.int64)
    return _last_rows(query_start[1:].astype(np.int64), np.array(plan.num_sampled, dtype=np.int64))


def _last_rows(ends: _Int64, counts: _Int64) -> _Int64:
    """Return the last `counts[i]` rows before each `ends[i]`, in order."""
    if counts.max() <= 1:
        return ends[counts > 0] - 1
    first = np.repeat(ends - counts, counts)
    return first + np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)
