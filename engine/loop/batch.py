"""Flat arrays of a step's plan: token ids, positions, slots, block tables, rows to sample. numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence
from engine.scheduling.seat_numbers import Int64
from engine.scheduling.seat_table import SeatTable

_COLUMNS_AT_ONCE = 8

_Int32 = npt.NDArray[np.int32]


@dataclass(slots=True, kw_only=True)
class StepArrays:
    """One step's inputs on the host: those of `StepTensors` and its `PagedStep`, and the flat rows to sample."""

    token_ids: Int64
    """Placeholders in `pending_rows`."""
    positions: Int64
    """Rows of the model's table of angles."""
    slots: Int64
    block_tables: _Int32
    query_start: _Int32
    context_lens: _Int32
    max_query_len: int
    max_context_len: int
    num_decodes: int
    sampled_rows: Int64
    pending_rows: Int64
    pending_serials: Int64
    """Of the sequences whose tokens in `pending_rows` are still on the device."""


def build_arrays(
    plan: StepPlan, table: SeatTable, *, block_size: int, angles_change_after: int | None = None
) -> StepArrays:
    """Lay the plan's tokens out flat, sequence after sequence.

    With `angles_change_after` the table of angles has that many rows for short sequences, followed by those of long
    ones.
    """
    rows, starts, counts = plan.rows, plan.starts, plan.counts
    numbers, block_tables = table.numbers, table.block_tables
    max_query_len = int(counts.max())
    query_start = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(counts, out=query_start[1:])
    if max_query_len == 1:
        num_decodes, owners, positions = len(rows), rows, starts
    else:
        num_decodes, owners = int(np.argmax(counts > 1)), np.repeat(rows, counts)
        positions = np.arange(query_start[-1]) + np.repeat(starts - query_start[:-1], counts)
    columns, offsets = np.divmod(positions, block_size)
    slots = block_tables[owners, columns].astype(np.int64) * block_size + offsets
    if angles_change_after is not None:
        positions = positions + numbers.has_long_angles[owners] * angles_change_after
    context_lens = (starts + counts).astype(np.int32)
    max_context_len = int(context_lens.max())
    is_pending = (numbers.num_pending[rows] > 0) & (context_lens == numbers.num_tokens[rows])
    return StepArrays(
        token_ids=_flat_tokens(plan, table, query_start, is_pending=is_pending),
        positions=positions,
        slots=slots,
        block_tables=block_tables[rows, : _num_columns(-(-max_context_len // block_size))],
        query_start=query_start,
        context_lens=context_lens,
        max_query_len=max_query_len,
        max_context_len=max_context_len,
        num_decodes=num_decodes,
        sampled_rows=_sampled_rows(plan, query_start),
        pending_rows=query_start[1:][is_pending].astype(np.int64) - 1,
        pending_serials=plan.serials[is_pending],
    )


def _flat_tokens(plan: StepPlan, table: SeatTable, query_start: _Int32, *, is_pending: npt.NDArray[np.bool_]) -> Int64:
    """Return the plan's tokens; those that are pending, each the last of its sequence, are placeholders."""
    numbers, rows = table.numbers, plan.rows
    is_newest = (plan.counts == 1) & (plan.starts + 1 == numbers.num_tokens[rows])
    if is_newest.all():  # in most steps: the newest token of each sequence
        return numbers.last_token_id[rows]
    token_ids = np.zeros(query_start[-1], dtype=np.int64)
    token_ids[query_start[:-1][is_newest]] = numbers.last_token_id[rows[is_newest]]
    for index in np.flatnonzero(~is_newest).tolist():
        first, start, count = int(query_start[index]), int(plan.starts[index]), int(plan.counts[index])
        known = _tokens_between(plan.sequences[index], start, start + count - int(is_pending[index]))
        token_ids[first : first + len(known)] = known
    return token_ids


def _tokens_between(sequence: Sequence, start: int, end: int) -> list[int]:
    """Return a sequence's tokens from `start` on and before `end`, its drafts last."""
    token_ids = sequence.token_ids[start:end]
    num_drafts = end - sequence.num_known_tokens
    return [*token_ids, *sequence.draft_token_ids[:num_drafts]] if num_drafts > 0 else token_ids


def _num_columns(num_blocks: int) -> int:
    """Round up the width of the block tables: a shape that rarely changes needs fewer graph recordings."""
    return -(-num_blocks // _COLUMNS_AT_ONCE) * _COLUMNS_AT_ONCE


def _sampled_rows(plan: StepPlan, query_start: _Int32) -> Int64:
    """Return the last `num_sampled` rows of each sequence, in order."""
    if plan.num_sampled.sum() == query_start[-1]:
        return np.arange(query_start[-1], dtype=np.int64)
    return _last_rows(query_start[1:].astype(np.int64), plan.num_sampled)


def _last_rows(ends: Int64, counts: Int64) -> Int64:
    """Return the last `counts[i]` rows before each `ends[i]`, in order."""
    if counts.max() <= 1:
        return ends[counts > 0] - 1
    first = np.repeat(ends - counts, counts)
    return first + np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)
