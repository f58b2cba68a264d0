from __future__ import annotations

import random

import pytest

from engine.config import Admission
from engine.scheduling.decisions import Reason
from tests.engine.simulated_engine import SimulatedEngine, expected_output, mixed_work


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("budget", [8, 13, 512])
def test_every_request_gets_its_own_tokens(*, caching: bool, budget: int) -> None:
    engine = SimulatedEngine(max_num_batched_tokens=budget, enable_prefix_caching=caching)
    work = mixed_work(30, seed=0)
    ids = [engine.add(prompt, max_tokens) for prompt, max_tokens in work]
    engine.run()
    for request_id, (prompt, max_tokens) in zip(ids, work, strict=True):
        (sequence,) = engine.finished[request_id]
        assert sequence.token_ids[len(prompt) :] == expected_output(prompt, max_tokens)


def test_running_sequences_come_before_waiting_ones() -> None:
    engine = SimulatedEngine(max_num_batched_tokens=8)
    engine.add([1] * 4, 5)
    engine.step()
    engine.add([2] * 20, 5)
    assert [count for _, count in engine.step()] == [1, 7]


def test_a_long_prompt_is_cut_into_chunks_and_mixed_with_decodes() -> None:
    engine = SimulatedEngine(max_num_batched_tokens=8)
    engine.add([1] * 4, 10)
    engine.add([2] * 20, 5)
    counts = [[count for _, count in engine.step()] for _ in range(4)]
    assert counts == [[4, 4], [1, 7], [1, 7], [1, 2]]


def test_a_tiny_pool_preempts_and_the_output_stays_right() -> None:
    engine = SimulatedEngine(num_blocks=19, admission=Admission.PROMPT)
    work = mixed_work(30, seed=0)
    ids = [engine.add(prompt, max_tokens) for prompt, max_tokens in work]
    engine.run()
    assert engine.scheduler.counters.num_preemptions > 0
    for request_id, (prompt, max_tokens) in zip(ids, work, strict=True):
        assert engine.finished[request_id][0].token_ids[len(prompt) :] == expected_output(prompt, max_tokens)


def test_preemption_does_not_thrash() -> None:
    engine = SimulatedEngine(num_blocks=19, admission=Admission.PROMPT, enable_prefix_caching=False)
    work = mixed_work(40, seed=0)
    for prompt, max_tokens in work:
        engine.add(prompt, max_tokens)
    steps = engine.run()
    # One sequence at a time, its prompt in one piece more than it needs, is the worst that may happen.
    assert steps <= sum(len(prompt) // 32 + 2 + max_tokens for prompt, max_tokens in work)


def test_the_oldest_request_always_advances() -> None:
    engine = SimulatedEngine(num_blocks=19, admission=Admission.PROMPT)
    for prompt, max_tokens in mixed_work(20, seed=0):
        engine.add(prompt, max_tokens)
    while engine.scheduler.has_work:
        oldest = min((s for s in engine.scheduler.running_sequences()), key=lambda s: s.request.arrival, default=None)
        before = oldest.num_computed_tokens if oldest else 0
        engine.step()
        assert oldest is None or oldest.num_computed_tokens > before


def test_known_lengths_never_preempt_under_peak_admission() -> None:
    engine = SimulatedEngine(num_blocks=40, max_num_seqs=16, admission=Admission.PEAK)
    for prompt, max_tokens in mixed_work(60, seed=0):
        engine.add(prompt, max_tokens)
    engine.run()
    assert engine.scheduler.counters.num_preemptions == 0


def test_the_victim_is_of_the_worst_priority_then_the_latest() -> None:
    engine = SimulatedEngine(num_blocks=7, block_size=4, admission=Admission.PROMPT)
    bulk = engine.add([1] * 8, 12, priority=1)
    early = engine.add([2] * 4, 12, priority=0)
    late = engine.add([3] * 4, 12, priority=0)
    order = []
    while engine.scheduler.has_work:
        engine.step()
        order = list(engine.finished)
    assert engine.scheduler.counters.num_preemptions > 0
    assert order == [early, late, bulk]


def test_an_urgent_request_takes_the_seat_of_a_bulk_one() -> None:
    engine = SimulatedEngine(max_num_seqs=1)
    bulk = engine.add([1] * 4, 20, priority=2)
    engine.step()
    urgent = engine.add([2] * 4, 3, priority=0)
    engine.run()
    assert list(engine.finished) == [urgent, bulk]
    assert engine.finished[bulk][0].token_ids[4:] == expected_output([1] * 4, 20)


def test_the_earlier_deadline_runs_first_within_a_priority() -> None:
    engine = SimulatedEngine(max_num_seqs=1)
    ids = [engine.add([1] * 4, 2, deadline=deadline) for deadline in (None, 30.0, 10.0)]
    engine.run()
    assert list(engine.finished) == [ids[2], ids[1], ids[0]]


def test_a_block_is_shareable_only_after_its_last_token_was_computed() -> None:
    engine = SimulatedEngine(max_num_batched_tokens=8)
    scheduler, pool, prompt = engine.scheduler, engine.scheduler.pool, list(range(30))
    engine.add(prompt, 1)
    for num_written in (0, 8, 16, 24):
        plan = scheduler.schedule()
        assert plan.starts.tolist() == [num_written]
        # While the step runs, its blocks are taken and their tokens known, and nothing is in them yet.
        assert len(pool.match(pool.chain(""), prompt, 7)[0]) == num_written // 4
        scheduler.advance(plan)


def test_a_prefix_hit_leaves_one_token_to_compute() -> None:
    engine = SimulatedEngine()
    prompt = list(range(16))
    engine.add(prompt, 1)
    engine.run()
    second = engine.add(prompt, 1)
    engine.run()
    assert engine.finished[second][0].num_cached_tokens == 12


def test_a_hash_collision_shares_no_block_of_other_tokens() -> None:
    engine = SimulatedEngine(digest=lambda _: b"same")
    first, other, same = (engine.add([start, *range(10, 19)], 2) for start in (1, 2, 1))
    engine.run()
    assert engine.finished[first][0].num_cached_tokens == 0
    assert engine.finished[other][0].num_cached_tokens == 0
    assert engine.finished[same][0].num_cached_tokens == 4, "the first block is the same; after it nothing is found"


@pytest.mark.parametrize("caching", [True, False])
def test_children_share_the_prompt_of_the_first(caching: bool) -> None:
    engine = SimulatedEngine(enable_prefix_caching=caching, max_num_batched_tokens=64)
    prompt = list(range(18))
    request_id = engine.add(prompt, 6, n=4)
    assert [count for _, count in engine.step()] == [18]
    assert [count for _, count in engine.step()] == [1, 2, 2, 2]
    assert engine.scheduler.pool.num_used == 4 + 4
    engine.run()
    assert len(engine.finished[request_id]) == 4


def test_an_abort_leaves_nothing_behind() -> None:
    engine = SimulatedEngine()
    ids = [engine.add([7] * 10, 10, n=3) for _ in range(6)]
    engine.step()
    engine.step()
    for request_id in ids:
        assert len(engine.scheduler.abort(request_id)) == 3
        engine.scheduler.check_integrity()
    assert engine.scheduler.abort(ids[0]) == []
    assert not engine.scheduler.has_work
    assert engine.scheduler.pool.num_used == 0


def test_sizes_that_can_never_fit_are_known_at_once() -> None:
    engine = SimulatedEngine(num_blocks=5, block_size=4)
    assert engine.scheduler.can_ever_hold(16)
    assert not engine.scheduler.can_ever_hold(17)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_done_in_any_order_no_block_is_lost_or_freed_twice(seed: int) -> None:
    rng = random.Random(seed)
    engine = SimulatedEngine(num_blocks=25, max_num_seqs=6, admission=Admission.PROMPT)
    scheduler = engine.scheduler
    for number in range(400):
        running = scheduler.running_sequences()
        action = rng.choice(["add", "step", "step", "step", "abort", "finish", "preempt"])
        if action == "add":
            engine.add([rng.randrange(3) for _ in range(rng.randint(1, 24))], rng.randint(1, 20), n=rng.randint(1, 3))
        elif action == "step" and scheduler.has_work:
            engine.step()
        elif action == "abort":
            scheduler.abort(rng.randrange(number + 1))
        elif action == "finish" and running:
            scheduler.finish(rng.choice(list(running)))
        elif action == "preempt" and running:
            scheduler._roster.preempt(rng.choice(list(running)), Reason.PREEMPTED_FOR_BLOCKS, next(iter(running)))
        scheduler.check_integrity()
    assert scheduler.counters.num_preemptions > 0
    engine.run()
    assert scheduler.pool.num_used == 0
    assert scheduler.pool.num_available == scheduler.pool.capacity
