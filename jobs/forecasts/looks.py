"""One measurement of a model's queue: the speed of its workers, and the interval in which each batch ends.

Pure: observations in, state and forecasts out; no SQL, no clock. A benchmark drives it as the dispatcher does
(`lab/eta.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jobs.forecasts.finish_times import Forecast, forecast
from jobs.forecasts.rates import Look, Rate, aged, measured
from jobs.forecasts.seen import BatchSeen, Ended, History, Mark, Seen
from jobs.forecasts.time_left import LEAST_SECONDS, TimeLeft, begun_lines, load_of, time_left, tokens_of
from jobs.forecasts.track_record import Kind, Phase, TrackRecord
from jobs.states import Priority

_MARKS = (10, 25, 50, 75, 90)
"""Per cent of a batch's lines: the first forecast at or after each is compared with the batch's end."""
_MOSTLY = 0.75
"""Share of the time left that one phase must have for a forecast to count for that phase; mixed forecasts teach nothing
about either."""
_LEAST_MARKED = 15.0
"""Shortest forecast, in seconds, that is compared with the actual end: below it the 5 s between measurements dominate
the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """State of a model kept between measurements."""

    rate: Rate = field(default_factory=Rate)
    record: TrackRecord = field(default_factory=TrackRecord)
    begun_tokens: float = 0.0
    """Begun tokens of all its batches at the last measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The forecast of one batch."""

    found: Forecast
    history: History
    seconds: float | None
    """Until its end; None where unknown."""
    earliest_seconds: float | None = None
    latest_seconds: float | None = None


def look(state: ModelState, seen: Seen) -> tuple[ModelState, list[Outcome]]:
    """Measure the speed, compare earlier forecasts with the ends, and forecast every batch."""
    before = aged(state.rate, seen.seconds)
    history = {batch.load.batch_id: _history(batch, seen, before) for batch in seen.batches}
    begun_tokens = sum(begun_lines(batch, before) * tokens_of(batch, before) for batch in seen.batches)
    done_lines = sum(
        history[batch.load.batch_id].done_lines - batch.history.done_lines
        for batch in seen.batches
        if batch.history is not None
    )
    rate = measured(
        before,
        Look(
            seconds=seen.seconds,
            tokens=seen.ended_tokens + begun_tokens - state.begun_tokens,
            num_workers=seen.num_workers,
            is_saturated=any(batch.ready_lines for batch in seen.batches),
            used_tokens=sum(batch.used_tokens for batch in seen.batches),
            estimated_tokens=sum(batch.estimated_tokens * batch.num_computed for batch in seen.batches),
            num_lines=sum(batch.num_computed for batch in seen.batches),
            running_lines=sum(batch.running_lines for batch in seen.batches),
            done_lines=done_lines,
        ),
    )
    after = ModelState(rate=rate, record=_compared(state.record, seen.ended), begun_tokens=begun_tokens)
    return after, list(_outcomes(after, seen, history))


def _compared(record: TrackRecord, ended: Sequence[Ended]) -> TrackRecord:
    for one in ended:
        # one that is due for several parts counts once
        for mark in filter(None, dict.fromkeys(one.history.marks.values())):
            record = record.after(mark.kind, forecast_seconds=mark.seconds, actual_seconds=one.ended_at - mark.made_at)
    return record


def _history(batch: BatchSeen, seen: Seen, rate: Rate) -> History:
    """Return what is stored about a batch after this measurement, without its mark."""
    done_lines = batch.num_computed + begun_lines(batch, rate)
    before = batch.history or History(first_lines=batch.num_computed)
    line_seconds = before.line_seconds + batch.running_lines * seen.seconds
    has_queued = before.has_queued or (batch.ready_lines > 0 and batch.num_computed > 0)
    return replace(before, line_seconds=line_seconds, done_lines=done_lines, has_queued=has_queued)


def _outcomes(state: ModelState, seen: Seen, history: Mapping[str, History]) -> Iterator[Outcome]:
    by_id = {batch.load.batch_id: batch for batch in seen.batches}
    for expected in forecast([load_of(batch, state.rate) for batch in seen.batches]):
        batch, own = by_id[expected.batch_id], history[expected.batch_id]
        num_workers = seen.num_workers if batch.num_workers is None else batch.num_workers
        left = None if batch.is_waiting else time_left(batch, expected, own, state.rate, num_workers=num_workers)
        if left is None:
            yield Outcome(found=expected, history=replace(own, marks={}), seconds=None)
        else:
            yield _outcome(batch, expected, _marked(own, batch, left, now=seen.now), left, state.record)


def _outcome(batch: BatchSeen, found: Forecast, history: History, left: TimeLeft, record: TrackRecord) -> Outcome:
    """Correct both parts by their earlier errors, which are independent of each other, so their squares add up."""
    priority = batch.load.priority
    queue = record.factors(_kind(Phase.QUEUE, priority))
    lines = record.factors(_kind(_phase_of_lines(history), priority))
    expected = left.queued_seconds * queue.expected + left.last_seconds * lines.expected
    early = math.hypot(
        left.queued_seconds * (queue.expected - queue.earliest), left.last_seconds * (lines.expected - lines.earliest)
    )
    late = math.hypot(
        left.queued_seconds * (queue.latest - queue.expected), left.last_seconds * (lines.latest - lines.expected)
    )
    return Outcome(
        found=found,
        history=history,
        seconds=max(expected, LEAST_SECONDS),
        earliest_seconds=max(expected - early, 0.0),
        latest_seconds=max(expected + late, LEAST_SECONDS),
    )


def _kind(phase: Phase, priority: Priority) -> Kind:
    """Return the kind of a forecast. Running lines take equally long in any class."""
    return phase, priority if phase is Phase.QUEUE else None


def _phase_of_lines(history: History) -> Phase:
    return Phase.LAST if history.has_queued else Phase.LINES


def _marked(history: History, batch: BatchSeen, left: TimeLeft, *, now: float) -> History:
    """Return what is stored with this forecast, where it is the first after a part of the work."""
    due = [part for part in _MARKS if 100 * batch.part_done >= part and part not in history.marks]
    if not due:
        return history
    phases = {Phase.QUEUE: left.queued_seconds, _phase_of_lines(history): left.last_seconds}
    phase = next((phase for phase, seconds in phases.items() if seconds >= _MOSTLY * left.seconds), None)
    mark = (
        None
        if phase is None or left.seconds < _LEAST_MARKED
        else Mark(made_at=now, seconds=left.seconds, kind=_kind(phase, batch.load.priority))
    )
    return replace(history, marks={**history.marks, **dict.fromkeys(due, mark)})
