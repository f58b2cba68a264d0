"""A batch of simulated lines, and its progress."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from jobs.states import Priority

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class SimulatedLine(NamedTuple):
    """Lengths in tokens, and the start of the prompt."""

    num_prompt_tokens: int
    num_output_tokens: int
    prefix: str = ""
    num_prefix_tokens: int = 0
    seconds_earlier: float = 0.0
    """How much earlier than its batch's the line's own deadline is: it starts before lines with a later one."""
    num_cached_tokens: int = 0
    """Part of the prompt in addition to the others: counted by budgets, but not computed."""


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedBatch:
    """A batch, and its progress."""

    number: int
    tenant: str
    weight: float
    priority: Priority
    arrival_seconds: float
    lines: Sequence[SimulatedLine]
    max_tokens: int
    """Of every line."""
    deadline_seconds: float | None = None
    """None: a day after the arrival, so that a tenant's oldest batch is first."""
    num_finished: int = 0
    used: int = 0
    """Tokens of the finished lines."""
    output_tokens: int = 0
    """Tokens of their answers."""
    num_claimed: int = 0
    claimed_at: float = 0.0
    """When its last chunk was claimed, in seconds."""
    first_end_seconds: float = math.inf
    """When its first line ended."""
    end_seconds: float = math.inf

    @property
    def deadline(self) -> float:
        return self.arrival_seconds + 86_400 if self.deadline_seconds is None else self.deadline_seconds

    @property
    def expires_at(self) -> datetime:
        return EPOCH + timedelta(seconds=self.deadline)

    @property
    def estimated_tokens(self) -> int:
        """Return a submit's estimate for all lines."""
        return sum(line.num_prompt_tokens for line in self.lines) + self.max_tokens * len(self.lines)
