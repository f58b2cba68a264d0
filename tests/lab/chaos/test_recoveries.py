"""Tests of the time without results after a fault."""

from __future__ import annotations

import pytest

from lab.chaos.faults import Fault, HeldChunk
from lab.chaos.plan import Kind, plan_faults
from lab.chaos.recoveries import Entry, percentile, recoveries

HELD = HeldChunk(chunk_id=7, batch_id="b", first_line=100, num_lines=50, fence=3)


def entry(at: float, *, chunk_id: int = 7, fence: int = 3, first_line: int = 100, batch_id: str = "b") -> Entry:
    return Entry(at=at, chunk_id=chunk_id, fence=fence, batch_id=batch_id, first_line=first_line)


def test_a_killed_workers_chunk_is_back_with_the_first_result_under_another_fence() -> None:
    fault = Fault(kind=Kind.WORKER_KILL, at=10.0, what="worker-0", held=[HELD])
    entries = [entry(9), entry(11), entry(12, batch_id="other", fence=1), entry(25, fence=4), entry(26, fence=4)]
    assert [one.seconds for one in recoveries(entries, [fault])] == [15.0]


def test_a_part_of_a_chunk_that_was_split_is_its_work_too() -> None:
    fault = Fault(kind=Kind.WORKER_STOP, at=10.0, what="worker-0", held=[HELD])
    entries = [entry(20, chunk_id=8, fence=1, first_line=99), entry(30, chunk_id=9, fence=1, first_line=149)]
    assert [one.seconds for one in recoveries(entries, [fault])] == [20.0]


def test_work_that_does_not_go_on_is_not_counted() -> None:
    fault = Fault(kind=Kind.WORKER_KILL, at=10.0, what="worker-0", held=[HELD])
    assert list(recoveries([entry(9), entry(10.1)], [fault])) == []


def test_an_engines_work_is_back_with_the_first_result_after_its_next_start() -> None:
    fault = Fault(kind=Kind.ENGINE_KILL, at=10.0, what="worker-0", held=[HELD], until=10.5)
    assert [one.seconds for one in recoveries([entry(10.2), entry(12)], [fault])] == [2.0]


def test_of_what_everybody_feels_the_longest_pause_counts() -> None:
    fault = Fault(kind=Kind.VALKEY_LOSS, at=10.0, what="all data", until=10.0)
    entries = [entry(at) for at in (1, 9, 12, 13, 18, 19.5, 40)]
    assert [one.seconds for one in recoveries(entries, [fault])] == [20.5]


def test_a_fault_beside_one_that_everybody_feels_is_not_alone() -> None:
    kill = Fault(kind=Kind.WORKER_KILL, at=10.0, what="worker-0", held=[HELD])
    crash = Fault(kind=Kind.POSTGRES_CRASH, at=20.0, what="immediate stop")
    [alone, _] = recoveries([entry(15, fence=4), entry(40)], [kill, crash])
    [beside, _] = recoveries([entry(25, fence=4), entry(40)], [kill, crash])
    assert (alone.is_alone, beside.is_alone) == (True, False)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2.0), (0.99, 4.0), (0.25, 1.0)])
def test_a_percentile_is_one_of_the_values(share: float, expected: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == expected


def test_a_plan_follows_from_its_seed_and_spreads_each_kind() -> None:
    counts = {Kind.WORKER_KILL: 10, Kind.VALKEY_LOSS: 2}
    plan = plan_faults(counts, seconds=100, seed=1)
    assert plan == plan_faults(counts, seconds=100, seed=1) != plan_faults(counts, seconds=100, seed=2)
    kills = [fault.at_seconds for fault in plan if fault.kind is Kind.WORKER_KILL]
    assert [int(at // 10) for at in kills] == list(range(10))
    assert plan == sorted(plan)
    assert len(plan) == 12
