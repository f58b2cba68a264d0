"""Tests of consecutive snapshots of one model's queue: what is measured, forecast, and learned from ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest

from jobs.forecasts.finish_times import BatchLoad
from jobs.forecasts.looks import ModelState, Outcome, look
from jobs.forecasts.rates import Rate
from jobs.forecasts.seen import BatchSeen, Ended, History, Mark, Seen
from jobs.forecasts.track_record import Phase
from jobs.states import Priority

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ESTIMATED, USED = 500.0, 100.0
"""Tokens of a line: its maximum, and its actual number."""


def seen_of(batch_id: str = "b", *, ready: int = 0, leased: int = 0, done: int = 0, **other: object) -> BatchSeen:
    load = BatchLoad(
        batch_id=batch_id,
        tenant_id="t",
        priority=Priority.NORMAL,
        weight=1.0,
        virtual_time=0.0,
        expires_at=NOON,
    )
    total = ready + leased + done
    seen = BatchSeen(
        load=load,
        estimated_tokens=ESTIMATED,
        estimated_output_tokens=ESTIMATED / 2,
        num_computed=done,
        used_tokens=done * USED,
        output_tokens=done * USED / 2,
        ready_lines=ready,
        leased_lines=leased,
        running_lines=leased,
        begun_output_tokens=0.0,
        part_done=done / total,
        is_waiting=False,
        history=None,
    )
    return replace(seen, **other)  # type: ignore[arg-type]  # by name


def seen_at(now: float, *batches: BatchSeen, seconds: float = 5.0, tokens: float = 0.0, num_workers: int = 1) -> Seen:
    return Seen(now=now, seconds=seconds, ended_tokens=tokens, num_workers=num_workers, batches=batches)


@dataclass
class Service:
    """One worker that computes one batch evenly, with a snapshot every 5 s."""

    lines: int
    lines_per_second: float
    seats: int = 64

    def looks(self, state: ModelState) -> Iterator[tuple[float, Outcome, ModelState]]:
        """Yield the true remaining seconds, the forecast, and the kept state, until the batch ends."""
        history, now, tokens_before = None, 0.0, 0.0
        while True:
            now += 5.0
            done_exactly = now * self.lines_per_second
            if done_exactly >= self.lines:
                return
            done = int(done_exactly) // 16 * 16  # lines end in groups
            leased = min(self.seats, self.lines - done)
            batch = seen_of(ready=self.lines - done - leased, leased=leased, done=done)
            batch = replace(batch, begun_output_tokens=(done_exactly - done) * USED / 2, history=history)
            seen = seen_at(now, batch, tokens=done * USED - tokens_before)
            tokens_before = done * USED
            state, (outcome,) = look(state, seen)
            history = outcome.history
            yield self.lines / self.lines_per_second - now, outcome, state


FAST = ModelState(
    rate=Rate(
        tokens_per_second=40_000.0,
        evidence_seconds=120.0,
        ended_ratio=0.02,
        evidence_lines=1000.0,
        line_seconds=500.0,
        ended_lines=1000.0,
        is_saturated=True,
    )
)
"""The state left by lines of another kind: hundreds of times as fast, and as short."""


@pytest.mark.parametrize("state", [ModelState(), FAST], ids=["nothing known", "after a fast batch"])
def test_what_is_told_comes_to_what_is_true_within_a_minute_whatever_ran_before(state: ModelState) -> None:
    """A batch of four minutes: its forecast was 15 s all the time, by the rate of the previous batch."""
    service = Service(lines=2400, lines_per_second=10.0)
    for left, outcome, _ in service.looks(state):
        if 20 < left < 180:
            assert outcome.seconds is not None
            assert outcome.earliest_seconds is not None
            assert outcome.latest_seconds is not None
            assert 0.5 * left < outcome.seconds < 2.2 * left, f"{left} s are left"
            assert 0 <= outcome.earliest_seconds < outcome.seconds < outcome.latest_seconds


def test_a_batch_that_nobody_shares_with_others_is_told_of_though_no_line_waits() -> None:
    """All of its lines are with the worker at once: no chunk waits, so nothing would correct a rate."""
    told = [(left, outcome) for left, outcome, _ in Service(lines=64, lines_per_second=0.25).looks(FAST) if left > 60]
    for left, outcome in told[len(told) // 2 :]:
        assert outcome.latest_seconds is not None
        assert outcome.latest_seconds > 0.8 * left, f"{left} s are left"


@pytest.mark.parametrize(
    ("batch", "num_workers"),
    [(seen_of(ready=64), 1), (seen_of(ready=64), 0), (seen_of(ready=64, is_waiting=True), 1)],
    ids=["nothing measured", "no worker", "no room in its budget"],
)
def test_nothing_is_told_where_nothing_is_known(batch: BatchSeen, num_workers: int) -> None:
    state = ModelState() if num_workers and not batch.is_waiting else FAST
    _, (outcome,) = look(state, seen_at(0.0, batch, seconds=0.0, num_workers=num_workers))
    assert (outcome.seconds, outcome.earliest_seconds, outcome.latest_seconds) == (None, None, None)


def test_an_end_of_more_than_ten_years_is_not_told() -> None:
    slow = replace(FAST, rate=replace(FAST.rate, tokens_per_second=1e-9))
    _, (outcome,) = look(slow, seen_at(0.0, seen_of(ready=64)))
    assert outcome.seconds is None


def test_errors_are_learned_from_batches_that_ended() -> None:
    mark = Mark(made_at=100.0, seconds=20.0, kind=(Phase.LAST, None))
    ended = Ended(history=History(marks={10: mark, 25: mark, 50: None}), ended_at=140.0)
    state, _ = look(ModelState(), replace(seen_at(150.0), ended=[ended]))
    assert state.record.errors == {(Phase.LAST, None): [0.693]}


def test_a_forecast_is_marked_once_at_each_part_of_the_work() -> None:
    marks: dict[int, Mark | None] = {}
    for _, outcome, _ in Service(lines=2400, lines_per_second=10.0).looks(FAST):
        for part, mark in outcome.history.marks.items():
            assert marks.setdefault(part, mark) == mark
    assert sorted(marks) == [10, 25, 50, 75, 90]
    assert {mark.kind[0] for mark in marks.values() if mark is not None} >= {Phase.QUEUE}


def test_what_is_told_is_forgotten_when_nothing_can_be_said_any_more() -> None:
    """A batch that waited for its budget did not end late."""
    mark = Mark(made_at=1.0, seconds=1.0, kind=(Phase.QUEUE, Priority.NORMAL))
    waiting = seen_of(ready=32, done=32, is_waiting=True, history=History(marks={10: mark}))
    _, (outcome,) = look(FAST, seen_at(5.0, waiting))
    assert outcome.history.marks == {}
