"""Tests of yielding to a more urgent request: only if it can then start, and with as few preemptions as needed."""

from __future__ import annotations

import random

import pytest

from engine.config import Admission, PolicyName
from engine.scheduling.decisions import Reason
from tests.engine.simulated_engine import SimulatedEngine


def running_ids(engine: SimulatedEngine) -> set[int]:
    return {sequence.request.request_id for sequence in engine.scheduler.running_sequences()}


def test_nobody_gives_way_to_one_that_could_not_start_even_then() -> None:
    engine = SimulatedEngine(num_blocks=41, block_size=4, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=160)
    engine.add([1] * 4, 100, priority=0)
    bulk = {engine.add([index + 2, 3], 14, priority=1) for index in range(5)}
    for _ in range(2):
        engine.step()
    engine.add([9] * 4, 90, priority=0)  # with the other urgent one it needs more than the pool has
    for _ in range(12):
        assert running_ids(engine) >= bulk
        engine.step()
    engine.run()
    assert engine.scheduler.counters.num_preemptions == 0


def test_nobody_gives_way_to_one_that_would_only_wait_for_a_prefix() -> None:
    engine = SimulatedEngine(num_blocks=401, max_num_seqs=2, max_num_batched_tokens=16)
    bulk = engine.add([7, 7, 7], 60, priority=1)
    engine.step()
    prompt = [index % 50 for index in range(150)]
    computer = engine.add(prompt, 9, priority=0)
    engine.step()
    sharer = engine.add(prompt, 3, priority=0)
    while next(iter(engine.scheduler.running_sequences())).num_computed_tokens < 148:
        assert running_ids(engine) == {bulk, computer}
        engine.step()
    engine.step()
    assert running_ids(engine) == {computer, sharer}


def test_one_behind_those_that_wait_for_a_prefix_takes_a_place() -> None:
    engine = SimulatedEngine(num_blocks=401, max_num_seqs=2, max_num_batched_tokens=16)
    engine.add([7, 7, 7], 60, priority=1)
    engine.step()
    prompt = [index % 50 for index in range(150)]
    computer = engine.add(prompt, 3, priority=0)
    for _ in range(9):
        engine.step()
    engine.add(prompt, 3, priority=0)
    other = engine.add([8] * 5, 3, priority=0)
    engine.step()
    assert running_ids(engine) == {computer, other}


def test_nobody_gives_way_while_others_take_the_whole_step() -> None:
    engine = SimulatedEngine(num_blocks=401, max_num_seqs=2, max_num_batched_tokens=16)
    bulk = engine.add([7, 7, 7], 60, priority=1)
    engine.step()
    long = engine.add([1] * 60, 3, priority=0)
    engine.step()
    urgent = engine.add([2] * 5, 3, priority=0)
    while next(iter(engine.scheduler.running_sequences())).num_computed_tokens < 48:
        assert running_ids(engine) == {bulk, long}
        engine.step()
    engine.step()
    assert running_ids(engine) == {long, urgent}


def test_as_few_give_way_as_free_the_blocks_that_are_needed() -> None:
    engine = SimulatedEngine(num_blocks=33, max_num_seqs=16, max_num_batched_tokens=64, admission=Admission.PROMPT)
    bulk = [engine.add([index] * 12, 8, priority=1) for index in range(8)]
    for _ in range(3):
        engine.step()
    assert engine.scheduler.pool.num_available == 0
    urgent = engine.add([50] * 30, 2, priority=0)
    share = engine.scheduler.forecast.share
    engine.step()
    assert running_ids(engine) == {*bulk[:6], urgent}  # eight blocks, four from each
    assert engine.scheduler.forecast.share == share


@pytest.mark.parametrize("policy", [PolicyName.PRIORITY, PolicyName.DEADLINE])
@pytest.mark.parametrize("admission", list(Admission))
@pytest.mark.parametrize("overlap", [True, False])
def test_whoever_others_give_way_to_starts_in_that_step(
    *, policy: PolicyName, admission: Admission, overlap: bool
) -> None:
    rng = random.Random(6)
    num_yields = 0
    for _ in range(40):
        engine = SimulatedEngine(
            num_blocks=rng.choice([12, 25, 60]),
            max_num_seqs=rng.choice([2, 6]),
            max_num_batched_tokens=rng.choice([8, 24, 64]),
            policy=policy,
            admission=admission,
            max_passed_over=rng.choice([1, 4, 64]),
            overlap=overlap,
        )
        stems = [[rng.randrange(97) for _ in range(20)] for _ in range(2)]
        for _ in range(40):
            prompt = rng.choice(stems)[: rng.randint(0, 20)] + [rng.randrange(97) for _ in range(rng.randint(1, 8))]
            priority, deadline = rng.randrange(3), engine.now + rng.randrange(90)
            engine.add(prompt, rng.randint(1, 14), priority=priority, deadline=deadline, stop_token_ids=(1000,))
            for _ in range(rng.randint(0, 4)):
                if engine.scheduler.has_work:
                    engine.step()
                    decisions = engine.scheduler.new_decisions()
                    started = {one.request_id for one in decisions if one.reason is Reason.STARTED}
                    urgent = {one.other_request_id for one in decisions if one.reason is Reason.PREEMPTED_FOR_URGENT}
                    assert urgent <= started
                    num_yields += len(urgent)
        engine.run()
    assert num_yields > 20
