"""Tests of which of a tenant's equal requests starts next: those with a common prefix together; nothing else moves."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from engine.config import PolicyName
from tests.engine.simulated_engine import SimulatedEngine


def one_seat(**settings: Any) -> SimulatedEngine:
    """Make an engine that runs one sequence at a time, so that sequences end in the order of their start."""
    return SimulatedEngine(max_num_seqs=1, **settings)


def prompt(beginning: int, own: int) -> list[int]:
    """Return three blocks that prompts with one beginning share, and one of its own."""
    return [*[beginning] * 12, own, own, own, own, 0]


def interleaved(num_beginnings: int, num_each: int) -> list[tuple[int, int]]:
    """Return (beginning, own) pairs in a random order."""
    pairs = [(10 + beginning, 50 + own) for beginning in range(num_beginnings) for own in range(num_each)]
    random.Random(7).shuffle(pairs)
    return pairs


def start_order(engine: SimulatedEngine) -> list[int]:
    engine.run()
    return list(engine.finished)


def runs(values: list[int]) -> int:
    """Return the number of runs of equal values."""
    return 1 + sum(before != after for before, after in itertools.pairwise(values))


def test_lines_that_begin_alike_start_one_after_the_other() -> None:
    engine = one_seat()
    engine.add([9] * 4, 3)  # runs while the others come
    engine.step()
    beginnings = {engine.add(prompt(*pair), 2, deadline=100.0): pair[0] for pair in interleaved(5, 4)}
    order = [beginnings[request_id] for request_id in start_order(engine)[1:]]
    assert runs(order) == 5


@pytest.mark.parametrize("num_seats", [1, 3])
def test_a_cache_that_holds_few_beginnings_finds_more_of_them(num_seats: int) -> None:
    computed = {}
    for policy in (PolicyName.FCFS, PolicyName.PRIORITY):
        engine = SimulatedEngine(max_num_seqs=num_seats, num_blocks=6 * num_seats + 1, policy=policy)
        for pair in interleaved(6, 6):
            engine.add(prompt(*pair), 2)
        engine.run()
        computed[policy] = engine.scheduler.counters.num_computed_tokens
    # Of 36 beginnings of 12 tokens no more are computed than one for each of 6, and one more where rounds meet.
    assert computed[PolicyName.PRIORITY] <= 36 * (5 + 1) + 7 * 12
    assert computed[PolicyName.FCFS] > 36 * (5 + 1) + 15 * 12


def test_a_line_whose_beginning_is_cached_when_it_comes_goes_first() -> None:
    engine = one_seat()
    engine.add(prompt(30, 1), 2)
    engine.step()
    cold = [engine.add(prompt(beginning, 1), 2) for beginning in (10, 20, 40)]
    warm = engine.add(prompt(30, 2), 2)
    assert set(cold) < set(order := start_order(engine))
    assert order[1] == warm


def test_the_turns_of_tenants_the_classes_and_the_deadlines_stay() -> None:
    engine = one_seat()
    engine.add([9] * 4, 3)
    engine.step()
    late = engine.add(prompt(10, 1), 4, tenant="a", deadline=900.0)
    soon = engine.add(prompt(20, 1), 4, tenant="a", deadline=100.0)
    late_too = engine.add(prompt(20, 2), 4, tenant="a", deadline=900.0)
    other = engine.add(prompt(20, 3), 4, tenant="b", deadline=900.0)
    bulk = engine.add(prompt(20, 4), 4, tenant="a", deadline=1.0, priority=1)
    order = start_order(engine)[1:]
    assert next(request_id for request_id in order if request_id in (late, soon, late_too)) == soon
    assert order.index(other) <= 1, "the other tenant has its turn, whatever the first one's prompts share"
    assert order[-1] == bulk


def test_nobody_waits_for_lines_that_come_behind_it_on_the_way() -> None:
    engine = one_seat(max_passed_over=10_000, num_blocks=200)
    engine.add([1] * 8, 3)
    engine.step()
    waiting = engine.add([90] * 12, 1)
    for number in range(80):
        engine.add([number % 9 + 1] * 4 + [20 + number % 60] * 8, 1)  # less than half of it is found
        engine.step()
        if waiting in engine.finished:
            break
    # Those that keep coming begin in nine ways: after one round of them it is its turn.
    assert list(engine.finished).index(waiting) <= 2 * 9 + 2


def test_without_a_prefix_cache_lines_start_as_they_came() -> None:
    engine = one_seat(enable_prefix_caching=False)
    ids = [engine.add(prompt(*pair), 2) for pair in interleaved(4, 3)]
    assert start_order(engine) == ids


def test_a_line_that_started_keeps_no_copy_of_its_prompt() -> None:
    engine = SimulatedEngine(max_num_seqs=4)
    for pair in interleaved(2, 4):
        engine.add(prompt(*pair), 6)
    engine.step()
    engine.step()
    running = engine.scheduler.running_sequences()
    assert running
    assert all(sequence.round_key[2] == b"" for sequence in running)
