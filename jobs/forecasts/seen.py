"""What one look finds of a model's open batches, and what is remembered of each until the next. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jobs.forecasts.finish_times import BatchLoad
from jobs.forecasts.track_record import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A forecast that was made at a part of a batch's work."""

    made_at: float
    """As all moments here: seconds of any one clock."""
    seconds: float
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is remembered of a batch from look to look."""

    line_seconds: float = 0.0
    """That its lines were in engines, one counted for each."""
    first_lines: float = 0.0
    """How many lines were done at the first look, and"""
    done_lines: float = 0.0
    """at the last, parts of lines among them."""
    has_queued: bool = False
    """Whether chunks of it waited at a look."""
    marks: Mapping[int, Mark | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSeen:
    """An open batch. Copies of identical lines are among no number of lines but `part_done`."""

    load: BatchLoad
    """Of which the tokens are filled in here."""
    estimated_tokens: float
    """Of one line, and of these"""
    estimated_output_tokens: float
    """of its answer."""
    num_computed: int
    """Lines that have ended and used tokens."""
    used_tokens: float
    """By them, without cached ones, and of these"""
    output_tokens: float
    """for answers."""
    ready_lines: int
    leased_lines: int
    running_lines: int
    """Of these, those that are in an engine."""
    begun_output_tokens: float
    """Generated for lines that have not ended."""
    part_done: float
    """Of all its lines, 0 to 1."""
    is_waiting: bool
    """For room in a budget: nobody knows when it ends."""
    told: Told | None
    """None at its first look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A batch of which every line has ended since the last look."""

    told: Told
    ended_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is found of one model."""

    now: float
    seconds: float
    """Since the last look; 0 where there was none, or too long ago."""
    ended_tokens: float
    """Used since then by lines that have ended, without cached ones."""
    num_workers: int
    batches: Sequence[BatchSeen]
    ended: Sequence[Ended] = ()
