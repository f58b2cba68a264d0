"""Sequences for tests of what the sampler is told."""

from __future__ import annotations

from typing import Any

from engine.params import SamplingParams
from engine.scheduling.blocks import NO_PARENT, BlockPool
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Request, Sequence
from engine.scheduling.seat_numbers import ints
from engine.scheduling.seat_table import SeatTable


def seated(
    prompt: list[int], output: list[int], *, row: int = 0, table: SeatTable | None = None, **params: Any
) -> Sequence:
    """Return a running sequence that has generated `output`; without a table it sits in one of its own."""
    request = Request(
        request_id=row,
        prompt_token_ids=prompt,
        params=SamplingParams(max_tokens=100, **params),
        max_tokens=100,
        seed=0,
        eos_token_ids=frozenset(),
        arrival=row,
    )
    sequence = Sequence(request, 0, BlockPool(4, 4).chain(""))
    (table or SeatTable(row + 1, 1)).take(row, sequence, chain_position=NO_PARENT)
    for token_id in output:
        sequence.append(token_id)
    return sequence


def plan_of(table: SeatTable, sequences: list[Sequence], counts: list[int] | None = None) -> StepPlan:
    """Plan that many of the newest tokens of each sequence, its drafts last; without `counts` the newest of each."""
    plan = StepPlan()
    for sequence, count in zip(sequences, counts or [1] * len(sequences), strict=True):
        sequence.num_computed_tokens = sequence.num_tokens + sequence.num_drafts - count
        plan.add(table, [sequence], ints([sequence.row]), ints([count]))
    return plan
