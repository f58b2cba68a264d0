"""Plans the due runs of a schedule: what runs, what is skipped and why, when it is due next. Pure functions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from features.pipelines.scheduling.cron import Cron
from features.pipelines.states import CatchUp, Overlap

LATE = timedelta(minutes=1)
"""A run is late if no dispatcher checked its schedule for longer than this after it was due; the schedule decides
whether it is caught up. The time that a running dispatcher takes to create it does not count."""
MAX_TICKS = 1000
"""Ticks planned at once: a schedule by the minute that was not checked for a month has 43,200."""
MAX_QUEUED = 100
"""Queued runs of one schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """The fields of a schedule that decide when it runs."""

    schedule_id: str
    cron: Cron
    ends_at: datetime | None
    """Inclusive."""
    jitter_seconds: int
    overlap: Overlap
    catch_up: CatchUp
    catch_up_window: timedelta

    def first(self, *, starts_at: datetime | None, now: datetime) -> datetime | None:
        """Return the first tick after now and not before `starts_at`, which may be a tick itself."""
        if starts_at is not None and starts_at > now:
            return self._kept(self.cron.after(starts_at - timedelta(seconds=1)))
        return self._kept(self.cron.after(now))

    def next(self, tick: datetime) -> datetime | None:
        """Return the tick after this one, not after now: otherwise a slow dispatcher would skip ticks."""
        return self._kept(self.cron.after(tick))

    def due(self, tick: datetime) -> datetime:
        """Return when the run of a tick is created: up to `jitter_seconds` later, the same at each call."""
        digest = hashlib.sha256(f"{self.schedule_id} {tick.isoformat()}".encode()).digest()
        return tick + timedelta(seconds=int.from_bytes(digest[:8]) % (self.jitter_seconds + 1))

    def _kept(self, tick: datetime | None) -> datetime | None:
        return None if tick is None or (self.ends_at is not None and tick > self.ends_at) else tick


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A run to insert."""

    scheduled_for: datetime
    interval_start: datetime
    skipped: str | None = None
    """Why it does not run; None if it is queued."""
    is_late: bool = False
    num_missed: int = 1
    """Number of ticks that a skipped run represents, including its own."""
    cancels: bool = False
    """Whether it replaces the runs that have not ended, which are cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The outcome of past ticks."""

    runs: Sequence[PlannedRun]
    """In order."""
    next_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Underway:
    """Runs of the schedule that have not ended."""

    running: int
    queued: int


def plan(
    timetable: Timetable, next_at: datetime, *, underway: Underway, watched_since: datetime, now: datetime
) -> Plan:
    """Plan the ticks from `next_at` to now, at most MAX_TICKS: the rest is left for the next call.

    Dispatchers have checked the schedule without a pause since `watched_since`.
    """
    ticks: list[datetime] = []
    tick: datetime | None = next_at
    while tick is not None and timetable.due(tick) <= now and len(ticks) < MAX_TICKS:
        ticks.append(tick)
        tick = timetable.next(tick)
    if not ticks:
        return Plan(runs=(), next_at=next_at)
    has_more = tick is not None and timetable.due(tick) <= now
    starts = [timetable.cron.before(next_at) or next_at, *ticks]
    runs = [
        _timed(timetable, each, start=start, is_last=each is ticks[-1] and not has_more, watched_since=watched_since)
        for start, each in zip(starts, ticks, strict=False)
    ]
    # All that are caught up must run, so they are queued one after another.
    follows = timetable.catch_up is CatchUp.ALL and timetable.overlap is not Overlap.CANCEL_RUNNING and runs[0].is_late
    rule = Overlap.QUEUE_ALL if follows else timetable.overlap
    return Plan(runs=_merged(_overlapping(runs, rule, underway)), next_at=tick)


def _timed(
    timetable: Timetable, tick: datetime, *, start: datetime, is_last: bool, watched_since: datetime
) -> PlannedRun:
    """Plan one tick: decide whether it still runs."""
    late = watched_since - timetable.due(tick)
    run = PlannedRun(scheduled_for=tick, interval_start=start, is_late=late > LATE)
    if timetable.catch_up is CatchUp.LATEST and not is_last and late > timedelta(0):
        return replace(run, skipped="no dispatcher checked the schedule when it was due, and a later run covers it")
    if not run.is_late:
        return run
    if timetable.catch_up is CatchUp.NONE:
        return replace(run, skipped="no dispatcher checked the schedule when it was due, and its catch_up is none")
    if late > timetable.catch_up_window:
        window = timetable.catch_up_window
        return replace(
            run, skipped=f"no dispatcher checked the schedule for longer than its catch_up_window of {window}"
        )
    return run


def _overlapping(runs: Sequence[PlannedRun], rule: Overlap, underway: Underway) -> list[PlannedRun]:
    """Apply the overlap rule: decide which runs remain while earlier ones have not ended."""
    decided: list[PlannedRun] = []
    running, queued = underway.running, underway.queued
    for run in runs:
        if run.skipped is not None:
            decided.append(run)
            continue
        reason = _in_the_way(rule, running=running, queued=queued)
        cancels = rule is Overlap.CANCEL_RUNNING and running + queued > 0
        decided.append(replace(run, skipped=reason, cancels=cancels))
        if reason is None:
            queued = 1 if cancels else queued + 1
            running = 0 if cancels else running
    return decided


def _in_the_way(rule: Overlap, *, running: int, queued: int) -> str | None:
    if rule is Overlap.SKIP and running + queued:
        return "an earlier run has not ended, and the schedule's overlap is skip"
    if rule is Overlap.QUEUE_ONE and queued:
        return "an earlier run waits to begin, and the schedule's overlap is queue_one"
    if rule is not Overlap.CANCEL_RUNNING and queued >= MAX_QUEUED:
        return f"{queued} runs of the schedule wait, which is the limit"
    return None


def _merged(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Merge consecutive runs that are skipped for the same reason into the last one."""
    merged: list[PlannedRun] = []
    for run in runs:
        last = merged[-1] if merged else None
        if last is not None and run.skipped is not None and last.skipped == run.skipped:
            merged[-1] = replace(run, interval_start=last.interval_start, num_missed=last.num_missed + 1)
        else:
            merged.append(run)
    return merged
