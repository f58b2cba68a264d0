"""Turn a step's plan into flat arrays: token ids, positions, slots, block tables, sampling parameters. numpy only.

What belongs to a seat (parameters, seed) is written once, when a sequence takes it; a step only gathers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.sampling.edits import EditBook
from engine.sampling.sampler import GREEDY_BELOW, SamplingRows
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence

_Int32 = npt.NDArray[np.int32]
_Int64 = npt.NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class StepArrays:
    """One step's inputs on the host; the fields of `StepTensors`, and the flat rows that are sampled.

    `token_ids` holds any token in `pending_rows`: those of `pending_sequences` are still on the device.
    """

    token_ids: _Int64
    positions: _Int64
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


def build_arrays(plan: StepPlan, block_tables: _Int32, *, block_size: int) -> StepArrays:
    """Lay the plan's tokens out flat, sequence after sequence."""
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
    starts = np.array(plan.starts, dtype=np.int64)
    counts = np.array(plan.counts, dtype=np.int64)
    rows = np.array([sequence.row for sequence in plan.sequences], dtype=np.int64)
    query_start = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=query_start[1:])
    num_tokens = int(query_start[-1])
    if num_tokens == len(counts):  # only decodes: one token each
        num_decodes, owners, positions = num_tokens, rows, starts
    else:
        num_decodes = int(np.argmax(counts > 1))
        owners = np.repeat(rows, counts)
        positions = np.arange(num_tokens) + np.repeat(starts - query_start[:-1], counts)
    slots = block_tables[owners, positions // block_size].astype(np.int64) * block_size + positions % block_size
    context_lens = (starts + counts).astype(np.int32)
    max_context_len = int(context_lens.max())
    num_sampled = np.array(plan.num_sampled, dtype=np.int64)
    return StepArrays(
        token_ids=np.array(token_ids, dtype=np.int64),
        positions=positions,
        slots=slots,
        block_tables=block_tables[rows, : -(-max_context_len // block_size)],
        query_start=query_start,
        context_lens=context_lens,
        max_query_len=int(counts.max()),
        max_context_len=max_context_len,
        num_decodes=num_decodes,
        sampled_rows=_last_rows(query_start[1:].astype(np.int64), num_sampled),
        pending_rows=pending_rows,
        pending_sequences=pending_sequences,
    )


def _last_rows(ends: _Int64, counts: _Int64) -> _Int64:
    """Return the last `counts[i]` rows before each `ends[i]`, in order."""
    if counts.max() <= 1:
        return ends[counts > 0] - 1
    first = np.repeat(ends - counts, counts)
    return first + np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)


class Seats:
    """The sampling parameters of each running sequence, in arrays by row."""

    def __init__(self, num_rows: int) -> None:
        self._owners: list[Sequence | None] = [None] * num_rows
        self._is_greedy = np.zeros(num_rows, dtype=np.bool_)
        self._temperature = np.ones(num_rows, dtype=np.float32)
        self._top_k = np.zeros(num_rows, dtype=np.int64)
        self._top_p = np.ones(num_rows, dtype=np.float32)
        self._min_p = np.zeros(num_rows, dtype=np.float32)
        self._seeds = np.zeros(num_rows, dtype=np.uint64)
        self._num_logprobs = np.zeros(num_rows, dtype=np.int64)
        self._first_free_output = np.zeros(num_rows, dtype=np.int64)
        self._edits = EditBook()

    def gather(self, plan: StepPlan) -> SamplingRows:
        """Return the parameters of the plan's sampled rows, in order."""
        sampled, offsets = _rows_to_sample(plan)
        for sequence in sampled:
            if self._owners[sequence.row] is not sequence:
                self._take(sequence)
        rows = np.array([sequence.row for sequence in sampled], dtype=np.int64)
        positions = np.array([sequence.num_output_tokens for sequence in sampled], dtype=np.int64) + offsets
        early = np.flatnonzero(positions < self._first_free_output[rows])
        return SamplingRows(
            is_greedy=self._is_greedy[rows],
            temperature=self._temperature[rows],
            top_k=self._top_k[rows],
            top_p=self._top_p[rows],
            min_p=self._min_p[rows],
            seeds=self._seeds[rows],
            positions=positions,
            num_logprobs=self._num_logprobs[rows],
            edits=self._edits.edits(sampled, offsets, early.tolist()),
        )

    def _take(self, sequence: Sequence) -> None:
        row, params = sequence.row, sequence.request.params
        self._owners[row] = sequence
        self._is_greedy[row] = params.is_greedy or params.temperature < GREEDY_BELOW
        self._temperature[row] = max(params.temperature, GREEDY_BELOW)
        self._top_k[row] = max(params.top_k, 0)
        self._top_p[row] = params.top_p
        self._min_p[row] = params.min_p
        self._seeds[row] = sequence.seed
        self._num_logprobs[row] = -1 if params.logprobs is None else params.logprobs
        # With a grammar the masks hold off the end, where the grammar allows anything else.
        has_early_rows = sequence.stop_token_ids and sequence.matcher is None
        self._first_free_output[row] = params.min_tokens if has_early_rows else 0
        self._edits.take(sequence)


def _rows_to_sample(plan: StepPlan) -> tuple[list[Sequence], _Int64]:
    """Return the owner of each sampled row, and how many drafts of its own come before it."""
    owners: list[Sequence] = []
    offsets: list[int] = []
    for sequence, num_sampled in plan.sampling():
        owners += [sequence] * num_sampled
        offsets += range(num_sampled)
    return owners, np.array(offsets, dtype=np.int64)
