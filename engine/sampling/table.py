"""Sampling parameters by seat: written once, when a sequence takes its seat; a step only gathers them.

numpy only. A column is declared once, in `SamplingRows`: the table and the sampler's neutral rows derive from these
declarations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.grammars.masks import RowMasks
from engine.sampling.edits import EditBook, Edits
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence
from engine.scheduling.seat_numbers import Int64

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them would overflow."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table: its dtype, its neutral value, and its value for a sequence."""

    dtype: type[np.generic]
    neutral: float
    of: Callable[[Sequence], float]


def _column(dtype: type[np.generic], neutral: float, of: Callable[[Sequence], float]) -> dict[str, Column]:
    return {"column": Column(dtype, neutral, of)}


def _is_greedy(sequence: Sequence) -> bool:
    params = sequence.request.params
    return params.is_greedy or params.temperature < GREEDY_BELOW


def _temperature(sequence: Sequence) -> float:
    return max(sequence.request.params.temperature, GREEDY_BELOW)


def _top_k(sequence: Sequence) -> int:
    return max(sequence.request.params.top_k, 0)


def _num_logprobs(sequence: Sequence) -> int:
    count = sequence.request.params.logprobs
    return -1 if count is None else count


@dataclass(slots=True, kw_only=True)
class SamplingRows:
    """Parameters of the rows to sample, one entry per row."""

    is_greedy: npt.NDArray[np.bool_] = field(metadata=_column(np.bool_, 0, _is_greedy))
    temperature: npt.NDArray[np.float32] = field(metadata=_column(np.float32, 1.0, _temperature))
    top_k: npt.NDArray[np.int64] = field(metadata=_column(np.int64, 0, _top_k))
    """0 = off."""
    top_p: npt.NDArray[np.float32] = field(metadata=_column(np.float32, 1.0, attrgetter("request.params.top_p")))
    min_p: npt.NDArray[np.float32] = field(metadata=_column(np.float32, 0.0, attrgetter("request.params.min_p")))
    seeds: npt.NDArray[np.uint64] = field(metadata=_column(np.uint64, 0, attrgetter("seed")))
    num_logprobs: npt.NDArray[np.int64] = field(metadata=_column(np.int64, -1, _num_logprobs))
    """−1 if none are requested."""
    positions: npt.NDArray[np.int64]
    """Index of the row's token in the output."""
    edits: Edits | None = None
    """Edits of the logits."""
    masks: RowMasks | None = None
    """Tokens allowed by grammars."""


_COLUMNS: dict[str, Column] = {
    one.name: one.metadata["column"] for one in fields(SamplingRows) if "column" in one.metadata
}


def neutral_rows(count: int) -> SamplingRows:
    """Return rows that are drawn from the whole distribution, each the first of its output."""
    return SamplingRows(positions=np.zeros(count, dtype=np.int64), **_neutral_columns(count))


def _neutral_columns(count: int) -> dict[str, Any]:
    return {name: np.full(count, column.neutral, dtype=column.dtype) for name, column in _COLUMNS.items()}


@dataclass(slots=True, kw_only=True)
class _Gathered:
    """Gathered parameters, valid while the same sequences are sampled in the same seats."""

    owners: list[Sequence]
    rows: Int64
    serials: Int64
    num_prompt_tokens: Int64
    first_free_output: Int64
    has_early_rows: bool
    columns: dict[str, Any]


class SamplingTable:
    """The sampling parameters of each running sequence, in arrays by seat."""

    def __init__(self, num_seats: int) -> None:
        self._serials = np.zeros(num_seats, dtype=np.int64)
        self._columns = _neutral_columns(num_seats)
        self._num_prompt_tokens = np.zeros(num_seats, dtype=np.int64)
        self._first_free_output = np.zeros(num_seats, dtype=np.int64)
        self._edits = EditBook(num_seats)
        self._last = self._gather([], np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))

    def gather(self, plan: StepPlan) -> SamplingRows:
        """Return the parameters of the plan's sampled rows, in order. Read-only: the next step may reuse them."""
        sampled, offsets = _rows_to_sample(plan)
        rows, serials, last = plan.rows[sampled], plan.serials[sampled], self._last
        if len(rows) != len(last.rows) or (serials != last.serials).any() or (rows != last.rows).any():
            owners = [plan.sequences[index] for index in sampled.tolist()]
            for index in (self._serials[rows] != serials).nonzero()[0].tolist():
                self._write(owners[index])
            last = self._last = self._gather(owners, rows, serials)
        num_tokens = (plan.starts + plan.counts - plan.num_sampled)[sampled] + 1  # all are known by now
        positions = num_tokens - last.num_prompt_tokens + offsets
        early = np.flatnonzero(positions < last.first_free_output).tolist() if last.has_early_rows else []
        edits = self._edits.edits(last.owners, rows, offsets, early)
        return SamplingRows(positions=positions, edits=edits, **last.columns)

    def _gather(self, owners: list[Sequence], rows: Int64, serials: Int64) -> _Gathered:
        first_free_output = self._first_free_output[rows]
        return _Gathered(
            owners=owners,
            rows=rows,
            serials=serials,
            num_prompt_tokens=self._num_prompt_tokens[rows],
            first_free_output=first_free_output,
            has_early_rows=bool(first_free_output.any()),
            columns={name: values[rows] for name, values in self._columns.items()},
        )

    def _write(self, sequence: Sequence) -> None:
        seat = sequence.row
        self._serials[seat] = sequence.serial
        for name, column in _COLUMNS.items():
            self._columns[name][seat] = column.of(sequence)
        self._num_prompt_tokens[seat] = sequence.num_prompt_tokens
        # With a grammar the masks delay the end, where the grammar allows anything else.
        has_early_rows = sequence.stop_token_ids and sequence.matcher is None
        self._first_free_output[seat] = sequence.request.params.min_tokens if has_early_rows else 0
        self._edits.write(sequence)


def _rows_to_sample(plan: StepPlan) -> tuple[Int64, Int64]:
    """Return the index of each sampled row's sequence, and how many drafts of its own come before it."""
    sampled = np.arange(len(plan.sequences)).repeat(plan.num_sampled)
    firsts = plan.num_sampled.cumsum() - plan.num_sampled
    return sampled, np.arange(len(sampled)) - firsts[sampled]
