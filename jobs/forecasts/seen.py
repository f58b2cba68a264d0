"""Observations of a model's open batches, and what is stored about each between measurements. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jobs.forecasts.finish_times import BatchLoad
from jobs.forecasts.track_record import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A forecast made at a certain part of a batch's work."""

    made_at: float
    """In seconds of any one clock, like all times here."""
    seconds: float
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What is stored about a batch between measurements."""

    line_seconds: float = 0.0
    """Sum over its lines of the time that each was in an engine."""
    first_lines: float = 0.0
    """Lines done at the first measurement, with fractions of lines."""
    done_lines: float = 0.0
    """Lines done at the last measurement, with fractions of lines."""
    has_queued: bool = False
    """Whether some of its chunks waited at a measurement."""
    marks: Mapping[int, Mark | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSeen:
    """An open batch. No number of lines but `part_done` includes copies of identical lines."""

    load: BatchLoad
    """Its tokens are filled in here."""
    estimated_tokens: float
    """Per line."""
    estimated_output_tokens: float
    """Per line, for the answer alone."""
    num_computed: int
    """Lines that have ended and used tokens."""
    used_tokens: float
    """By those lines, without cached tokens."""
    output_tokens: float
    """By those lines, for answers alone."""
    ready_lines: int
    leased_lines: int
    running_lines: int
    """Those of them that are in an engine."""
    begun_output_tokens: float
    """Generated for unfinished lines."""
    part_done: float
    """Of all its lines, 0 to 1."""
    is_waiting: bool
    """For room in a budget: its end is unknown."""
    history: History | None
    """None at its first measurement."""
    num_workers: float | None = None
    """Workers that may run its lines, in average ones; None: all of its model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A batch whose last line has ended since the last measurement."""

    history: History
    ended_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Observations of one model."""

    now: float
    seconds: float
    """Since the last measurement; 0 where there was none, or too long ago."""
    ended_tokens: float
    """Used since then by ended lines, without cached tokens."""
    num_workers: float
    """In average ones: `speeds.as_workers`."""
    batches: Sequence[BatchSeen]
    ended: Sequence[Ended] = ()
