"""Which runs a schedule is due for, as values: what runs, what is skipped and why, when it is due next. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from features.pipelines.scheduling.cron import Cron
from jobs.states import CatchUp, Overlap

LATE = timedelta(minutes=1)
"""A run is late if no dispatcher looked for longer than this after it was due: its schedule says whether it is caught
up on. How long a dispatcher that looks takes to make it does not count."""
MAX_TICKS = 1000
"""That are looked at in one go: of a schedule by the minute that nobody looked at for a month there are 43,200."""
MAX_QUEUED = 100
"""Runs of one schedule that wait at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """What of a schedule says when it runs."""

    schedule_id: str
    cron: Cron
    ends_at: datetime | None
    """Inclusive."""
    jitter_seconds: int
    overlap: Overlap
    catch_up: CatchUp
    catch_up_window: timedelta

    def first(self, *, starts_at: datetime | None, now: datetime) -> datetime | None:
        """Return the first tick from now on, and not before `starts_at`, which may be one itself."""
        if starts_at is not None and starts_at > now:
            return self._kept(self.cron.after(starts_at - timedelta(seconds=1)))
        return self._kept(self.cron.after(now))

    def next(self, tick: datetime) -> datetime | None:
        """Return the tick after this one: never after now, else a slow dispatcher would leave ticks out."""
        return self._kept(self.cron.after(tick))

    def due(self, tick: datetime) -> datetime:
        """Return when the run of a tick is made: up to `jitter_seconds` later, the same whoever asks."""
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
    """Why it does not run; None: it is queued."""
    is_late: bool = False
    num_missed: int = 1
    """Ticks that a skipped one stands for, itself included."""
    cancels: bool = False
    """It is queued in favour of those that have not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What becomes of the ticks that are over."""

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
    """Decide on the ticks from `next_at` to now, MAX_TICKS of them at most: the rest is for the next go.

    Since `watched_since` dispatchers have looked at the schedule without a pause.
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
    # All of those that are caught up on are to run, so they follow each other.
    follows = timetable.catch_up is CatchUp.ALL and timetable.overlap is not Overlap.CANCEL_RUNNING and runs[0].is_late
    rule = Overlap.QUEUE_ALL if follows else timetable.overlap
    return Plan(runs=_merged(_overlapping(runs, rule, underway)), next_at=tick)


def _timed(
    timetable: Timetable, tick: datetime, *, start: datetime, is_last: bool, watched_since: datetime
) -> PlannedRun:
    """Say of one tick whether it is still to run."""
    late = watched_since - timetable.due(tick)
    run = PlannedRun(scheduled_for=tick, interval_start=start, is_late=late > LATE)
    if timetable.catch_up is CatchUp.LATEST and not is_last and late > timedelta(0):
        return replace(run, skipped="nobody looked at the schedule when it was due, and a later run makes up for it")
    if not run.is_late:
        return run
    if timetable.catch_up is CatchUp.NONE:
        return replace(run, skipped="nobody looked at the schedule when it was due, and its catch_up is none")
    if late > timetable.catch_up_window:
        window = timetable.catch_up_window
        return replace(run, skipped=f"nobody looked at the schedule for longer than its catch_up_window of {window}")
    return run


def _overlapping(runs: Sequence[PlannedRun], rule: Overlap, underway: Underway) -> list[PlannedRun]:
    """Say of the runs that are to run what those before them, which have not ended, leave of them."""
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
        return f"{queued} runs of the schedule wait, which is as many as may"
    return None


def _merged(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Let the last of several that are skipped one after the other, for one reason, stand for them."""
    merged: list[PlannedRun] = []
    for run in runs:
        last = merged[-1] if merged else None
        if last is not None and run.skipped is not None and last.skipped == run.skipped:
            merged[-1] = replace(run, interval_start=last.interval_start, num_missed=last.num_missed + 1)
        else:
            merged.append(run)
    return merged
