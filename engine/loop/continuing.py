"""Divide a step's samples: those of sequences that only go on with their new token, and the others. numpy only.

In most steps all but a few go on, and one comparison finds them.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence
from engine.scheduling.seat_numbers import Int64
from engine.scheduling.seat_table import SeatTable


@dataclass(frozen=True, slots=True)
class Other:
    """A sequence whose samples may end it, be drafts, follow a grammar, or have log-probabilities."""

    sequence: Sequence
    samples: range
    """Which of the step's samples are its own."""
    num_going_on: int
    """How many sequences before it in the step only go on."""


@dataclass(frozen=True, slots=True)
class Division:
    """A step's sampling sequences."""

    going_on: Int64
    """Indices in the plan of those that go on: the token does not end them, and nothing but their tokens changes."""
    token_ids: Int64
    """Their tokens."""
    others: list[Other]
    """In the plan's order; some may have been aborted."""


def divide(plan: StepPlan, table: SeatTable, tokens: Int64) -> Division:
    """Divide the plan's sampling sequences by `tokens`, one for each sampled row."""
    rows, num_sampled = plan.rows, plan.num_sampled
    ends = num_sampled.cumsum()
    newest = tokens[ends - 1]  # of a sequence that samples nothing: another's, which is not used
    is_simple = (num_sampled == 1) & (plan.asks_more == 0) & table.hold(rows, plan.serials)
    is_last = plan.starts + plan.counts + 1 >= table.numbers.max_total_tokens[rows]
    goes_on = is_simple & (newest >= 0) & ~is_last & ~table.is_stop(rows, newest)
    is_other = (num_sampled > 0) & ~goes_on
    num_going_on = goes_on.cumsum()
    others = [
        Other(plan.sequences[index], range(ends[index] - num_sampled[index], ends[index]), int(num_going_on[index]))
        for index in is_other.nonzero()[0].tolist()
    ]
    return Division(goes_on.nonzero()[0], newest[goes_on], others)
