from __future__ import annotations

from typing import Any

import pytest

from engine.config import Admission, EngineConfig, PolicyName
from engine.errors import InvalidConfigError
from engine.scheduling.policies import POLICIES, DeadlinePolicy, PrefixPolicy, make_policy
from tests.engine.simulated_engine import SimulatedEngine, expected_output, mixed_work


def finish_order(engine: SimulatedEngine) -> list[int]:
    engine.run()
    return list(engine.finished)


def one_seat(policy: PolicyName, **settings: Any) -> SimulatedEngine:
    """Make an engine that runs one sequence at a time, so that sequences end in the order of their start."""
    return SimulatedEngine(policy=policy, max_num_seqs=1, **settings)


def add_mixed(engine: SimulatedEngine, count: int) -> dict[int, tuple[list[int], int]]:
    """Add work of three priorities, four tenants and various deadlines."""
    work = {}
    for index, (prompt, max_tokens) in enumerate(mixed_work(count, seed=5)):
        deadline = None if index % 3 == 0 else float(20 + index * 7 % 90)
        request_id = engine.add(prompt, max_tokens, priority=index % 3, deadline=deadline, tenant=f"t{index % 4}")
        work[request_id] = (prompt, max_tokens)
    return work


def test_every_name_has_a_policy() -> None:
    assert set(POLICIES) == set(PolicyName)
    assert type(make_policy(PolicyName.DEADLINE)) is DeadlinePolicy


def test_an_unknown_policy_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(InvalidConfigError, match="policy is 'lifo'; it must be one of fcfs, priority"):
        EngineConfig(model="m", policy="lifo")  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", list(PolicyName))
@pytest.mark.parametrize("caching", [True, False])
def test_a_tiny_pool_gives_the_same_tokens_under_every_policy(policy: PolicyName, caching: bool) -> None:
    engine = SimulatedEngine(
        num_blocks=19, admission=Admission.PROMPT, policy=policy, enable_prefix_caching=caching, max_passed_over=4
    )
    work = add_mixed(engine, 30)
    engine.run()
    assert engine.scheduler.counters.num_preemptions > 0
    for request_id, (prompt, max_tokens) in work.items():
        (sequence,) = engine.finished[request_id]
        assert sequence.token_ids[len(prompt) :] == expected_output(prompt, max_tokens)


@pytest.mark.parametrize("policy", list(PolicyName))
def test_preemption_does_not_thrash_and_the_best_one_always_advances(policy: PolicyName) -> None:
    engine = SimulatedEngine(num_blocks=19, admission=Admission.PROMPT, policy=policy, enable_prefix_caching=False)
    work = add_mixed(engine, 40)
    num_steps = 0
    while engine.scheduler.has_work:
        first = next(iter(engine.scheduler.running_sequences()), None)
        before = first.num_computed_tokens if first else 0
        engine.step()
        num_steps += 1
        # Fair shares move with every step; under the other policies the best one is never made to give way.
        assert first is None or first.num_computed_tokens > before or policy is PolicyName.FAIR
    assert engine.scheduler.counters.num_preemptions > 0
    # One sequence at a time, its prompt in one piece more than it needs, is the worst that may happen.
    assert num_steps <= sum(len(prompt) // 32 + 2 + max_tokens for prompt, max_tokens in work.values())


@pytest.mark.parametrize("policy", list(PolicyName))
def test_the_oldest_request_starts_within_its_bound_however_many_come_later(policy: PolicyName) -> None:
    engine = one_seat(policy, max_passed_over=5)
    # Under its policy each of these would wait for as long as better ones keep coming.
    oldest = engine.add([1] * 8, 40, priority=9, deadline=None, tenant="greedy")
    engine.step()
    starved = engine.add([2] * 8, 40, priority=9, deadline=None, tenant="greedy")
    for _ in range(400):
        engine.add([3] * 8, 1, priority=0, deadline=engine.now + 1000.0, tenant=f"t{engine.now}")
        engine.step()
        if starved in engine.finished:
            break
    ended = list(engine.finished)
    assert oldest in ended
    assert ended.index(starved) <= 2 * (5 + 1)


@pytest.mark.parametrize("policy", list(PolicyName))
def test_a_protected_sequence_advances_in_every_step(policy: PolicyName) -> None:
    engine = SimulatedEngine(num_blocks=19, admission=Admission.PROMPT, policy=policy, max_passed_over=1)
    add_mixed(engine, 40)
    num_protected = 0
    while engine.scheduler.has_work:
        running = [sequence for sequence in engine.scheduler.running_sequences() if sequence.is_protected]
        before = running[0].num_computed_tokens if running else 0
        engine.step()
        num_protected += len(running)
        assert not running or running[0].num_computed_tokens > before
    assert policy is PolicyName.FCFS or num_protected > 0


def test_first_come_is_first_served_whatever_the_priority() -> None:
    engine = one_seat(PolicyName.FCFS)
    ids = [engine.add([1] * 4, 3, priority=priority, deadline=float(priority)) for priority in (2, 1, 0)]
    assert finish_order(engine) == ids


def test_the_shortest_goes_first_and_the_earlier_of_two_equals() -> None:
    engine = one_seat(PolicyName.SHORTEST)
    long, first, second, shortest = (engine.add([1] * 4, count) for count in (9, 5, 5, 2))
    assert finish_order(engine) == [shortest, first, second, long]


def test_the_earliest_deadline_goes_first_and_none_goes_last() -> None:
    engine = one_seat(PolicyName.DEADLINE)
    ids = [engine.add([1] * 4, 3, deadline=deadline) for deadline in (None, 900.0, 300.0, 600.0)]
    assert finish_order(engine) == [ids[2], ids[3], ids[1], ids[0]]


def test_a_deadline_that_cannot_be_met_does_not_hold_up_one_that_can() -> None:
    engine = one_seat(PolicyName.DEADLINE)
    running = engine.add([1] * 4, 10, deadline=500.0)
    for _ in range(5):
        engine.step()  # a step takes one second from now on, as far as the policy knows
    hopeless = engine.add([2] * 4, 10, deadline=engine.now + 6.0)
    feasible = engine.add([3] * 4, 10, deadline=engine.now + 40.0)
    assert finish_order(engine) == [running, feasible, hopeless]


def test_a_request_that_must_start_now_takes_the_place_of_a_later_deadline() -> None:
    engine = one_seat(PolicyName.DEADLINE)
    relaxed = engine.add([1] * 4, 60, deadline=1000.0)
    for _ in range(3):
        engine.step()
    urgent = engine.add([2] * 4, 10, deadline=engine.now + 13.0)
    engine.step()
    assert [sequence.request.request_id for sequence in engine.scheduler.running_sequences()] == [urgent]
    assert finish_order(engine) == [urgent, relaxed]
    assert engine.finished[relaxed][0].token_ids[4:] == expected_output([1] * 4, 60)


def test_a_request_with_slack_takes_nobody_s_place() -> None:
    engine = one_seat(PolicyName.DEADLINE)
    running = engine.add([1] * 4, 30, deadline=1000.0)
    for _ in range(3):
        engine.step()
    early = engine.add([2] * 4, 10, deadline=900.0)
    assert finish_order(engine) == [running, early]
    assert engine.scheduler.counters.num_preemptions == 0


def test_an_idle_engine_does_not_count_the_pause_as_a_step() -> None:
    engine = one_seat(PolicyName.DEADLINE)
    engine.add([1] * 4, 5)
    engine.run()
    engine.now += 10_000.0
    engine.add([1] * 4, 5)
    engine.run()
    assert engine.scheduler.pace.step_seconds == pytest.approx(1.0)


@pytest.mark.parametrize("policy", [PolicyName.PRIORITY, PolicyName.FAIR])
def test_a_tenant_with_many_requests_does_not_hold_up_one_with_few(policy: PolicyName) -> None:
    engine = one_seat(policy)
    many = [engine.add([1] * 4, 6, tenant="many") for _ in range(6)]
    few = [engine.add([2] * 4, 6, tenant="few") for _ in range(2)]
    order = finish_order(engine)
    assert order[:4] == [many[0], few[0], many[1], few[1]] or order[:4] == [few[0], many[0], few[1], many[1]]


def test_tenants_are_served_tokens_and_not_requests_in_equal_measure() -> None:
    engine = one_seat(PolicyName.FAIR, num_blocks=200)
    for _ in range(10):
        engine.add([1] * 10, 30, tenant="long")
        for _ in range(4):
            engine.add([2] * 4, 6, tenant="short")
    for _ in range(250):
        engine.step()
    served = {"long": 0, "short": 0}
    for sequences in engine.finished.values():
        served[sequences[0].request.tenant] += sequences[0].num_tokens
    # One unfinished request of the longer kind is the most that the two may be apart.
    assert abs(served["long"] - served["short"]) <= 40
    assert min(served.values()) > 60


@pytest.mark.parametrize("policy", [PolicyName.PRIORITY, PolicyName.FAIR])
def test_a_tenant_gets_tokens_by_its_weight(policy: PolicyName) -> None:
    engine = one_seat(policy)
    heavy = [engine.add([1] * 4, 6, tenant="heavy", weight=3.0) for _ in range(12)]
    for _ in range(12):
        engine.add([2] * 4, 6, tenant="light")
    assert sum(request_id in heavy for request_id in finish_order(engine)[:12]) in (8, 9, 10)


def test_of_one_priority_no_deadline_puts_a_tenant_before_another() -> None:
    engine = one_seat(PolicyName.PRIORITY)
    early = [engine.add([1] * 4, 6, tenant="early", deadline=100.0) for _ in range(6)]
    late = [engine.add([2] * 4, 6, tenant="late", deadline=900.0) for _ in range(2)]
    order = finish_order(engine)
    assert order[:4] == [early[0], late[0], early[1], late[1]]


def test_within_a_tenant_the_earlier_deadline_goes_first_and_classes_go_before_turns() -> None:
    engine = one_seat(PolicyName.PRIORITY)
    first = engine.add([1] * 4, 6, tenant="a", priority=1, deadline=900.0)
    engine.step()
    late = engine.add([1] * 4, 6, tenant="a", priority=1, deadline=900.0)
    soon = engine.add([1] * 4, 6, tenant="a", priority=1, deadline=300.0)
    other = engine.add([2] * 4, 6, tenant="b", priority=2)
    urgent = engine.add([3] * 4, 6, tenant="a", priority=0)
    assert finish_order(engine) == [urgent, first, soon, late, other]


def test_what_a_tenant_ran_while_nobody_waited_is_not_held_against_it() -> None:
    engine = one_seat(PolicyName.PRIORITY, num_blocks=200)
    engine.add([1] * 4, 90, tenant="alone")
    engine.run()
    alone = [engine.add([1] * 4, 6, tenant="alone") for _ in range(6)]
    other = [engine.add([2] * 4, 6, tenant="other") for _ in range(6)]
    first = finish_order(engine)[1:7]
    assert sum(request_id in alone for request_id in first) == sum(request_id in other for request_id in first) == 3


def test_idle_time_earns_a_tenant_nothing() -> None:
    engine = one_seat(PolicyName.FAIR)
    for _ in range(20):
        engine.add([1] * 4, 6, tenant="steady")
    for _ in range(60):
        engine.step()
    late = [engine.add([2] * 4, 6, tenant="late") for _ in range(8)]
    already = len(engine.finished)
    order = finish_order(engine)[already:]
    first = [request_id in late for request_id in order[:8]]
    assert sum(first) in (4, 5), "the newcomer gets its half from now on, not what it missed"


def test_the_tenant_served_most_is_preempted_first() -> None:
    engine = SimulatedEngine(num_blocks=9, policy=PolicyName.FAIR, admission=Admission.PROMPT)
    engine.add([1] * 12, 18, tenant="heavy")
    light = engine.add([2] * 4, 18, tenant="light")
    engine.run()
    assert engine.scheduler.counters.num_preemptions > 0
    assert engine.finished[light][0].num_preemptions == 0


def test_the_longest_cached_prefix_goes_first() -> None:
    engine = one_seat(PolicyName.PREFIX)
    shared = list(range(16))
    engine.add(shared, 2)
    engine.run()
    cold = engine.add([50] * 17, 2)
    half = engine.add(shared[:8] + [60] * 9, 2)
    warm = engine.add([*shared, 70], 2)
    assert finish_order(engine)[1:] == [warm, half, cold]


def test_prefixes_are_looked_up_for_a_window_of_the_waiting_only() -> None:
    engine = one_seat(PolicyName.PREFIX, num_blocks=400)
    shared = list(range(16))
    engine.add(shared, 2)
    engine.run()
    cold = [engine.add([100 + index] * 9, 1) for index in range(PrefixPolicy.WINDOW + 1)]
    warm = engine.add([*shared, 70], 1)
    order = finish_order(engine)[1:]
    # The window moves up as its first leave, and takes the warm one in after two of them.
    assert order == [*cold[:2], warm, *cold[2:]]
