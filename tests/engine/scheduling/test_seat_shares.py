"""Tests of seats between tenants of one class: those that hold far more yield single ones."""

from __future__ import annotations

from collections import Counter

from engine.scheduling.decisions import Reason
from engine.scheduling.policies import PriorityPolicy
from engine.scheduling.seat_shares import SeatShares
from tests.engine.simulated_engine import SimulatedEngine


def engine_of(num_seats: int) -> SimulatedEngine:
    return SimulatedEngine(num_blocks=801, max_num_seqs=num_seats, max_num_batched_tokens=256)


def seats(engine: SimulatedEngine) -> Counter[str]:
    return Counter(sequence.request.tenant for sequence in engine.scheduler.running_sequences())


def crowd(engine: SimulatedEngine, tenant: str, count: int, max_tokens: int = 100, *, priority: int = 0) -> list[int]:
    return [engine.add([index, 5, 6], max_tokens, tenant=tenant, priority=priority) for index in range(count)]


def steps(engine: SimulatedEngine, count: int) -> None:
    for _ in range(count):
        engine.step()


def test_a_tenant_that_comes_later_gets_a_third_of_the_seats_at_once_and_no_more() -> None:
    engine = engine_of(12)
    crowd(engine, "early", 12)
    steps(engine, 3)
    crowd(engine, "late", 12)
    steps(engine, 8)
    assert seats(engine) == {"early": 8, "late": 4}
    assert engine.scheduler.counters.num_preemptions == 4
    engine.run()


def test_its_lines_do_not_wait_for_the_end_of_long_ones() -> None:
    engine = engine_of(4)
    early = crowd(engine, "early", 4, max_tokens=200)
    steps(engine, 3)
    late = crowd(engine, "late", 1, max_tokens=8)
    steps(engine, 12)
    finished = {request_id for request_id in (*early, *late) if not engine.scheduler.has_request(request_id)}
    assert finished == set(late)
    reasons = [each.reason for request_id in early for each in engine.scheduler.decisions(request_id)]
    assert reasons.count(Reason.PREEMPTED_FOR_SHARE) == 1
    engine.run()


def test_the_latest_line_of_the_tenant_with_the_most_seats_gives_way() -> None:
    engine = engine_of(8)
    most = crowd(engine, "most", 6)
    few = crowd(engine, "few", 2)
    steps(engine, 3)
    crowd(engine, "new", 1)
    steps(engine, 2)  # in the first the others are served while it waits
    assert seats(engine) == {"most": 5, "few": 2, "new": 1}
    running = {sequence.request.request_id for sequence in engine.scheduler.running_sequences()}
    assert {*most[:-1], *few} <= running
    engine.run()


def test_a_tenant_of_more_weight_gets_more() -> None:
    engine = engine_of(12)
    crowd(engine, "early", 12)
    steps(engine, 3)
    for index in range(12):
        engine.add([index, 7, 8], 100, tenant="late", weight=4.0)
    steps(engine, 12)
    assert seats(engine) == {"early": 4, "late": 8}
    engine.run()


def test_alone_nobody_gives_way_and_another_class_is_not_counted() -> None:
    engine = engine_of(4)
    crowd(engine, "early", 4, priority=0)
    steps(engine, 2)
    crowd(engine, "early", 4, priority=0)
    crowd(engine, "late", 2, priority=1)  # of a worse class
    steps(engine, 6)
    assert seats(engine) == {"early": 4}
    assert engine.scheduler.counters.num_preemptions == 0
    engine.run()


def test_one_that_would_need_the_room_of_several_waits_for_it() -> None:
    engine = SimulatedEngine(num_blocks=41, block_size=4, max_num_seqs=8, max_num_batched_tokens=160, max_model_len=160)
    crowd(engine, "early", 8, max_tokens=14)
    steps(engine, 6)
    large = engine.add([1] * 120, 4, tenant="late")
    engine.step()
    assert seats(engine) == {"early": 8}
    assert engine.scheduler.counters.num_preemptions == 0
    engine.run()
    assert not engine.scheduler.has_request(large)


def test_who_has_no_seat_is_not_remembered() -> None:
    engine = engine_of(4)
    for number in range(20):
        crowd(engine, f"tenant {number}", 2, max_tokens=3, priority=number % 2)
    engine.run()
    policy = engine.scheduler.policy
    assert isinstance(policy, PriorityPolicy)
    assert vars(policy._shares) == vars(SeatShares())
