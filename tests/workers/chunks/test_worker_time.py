"""Tests of dividing a worker's time among its open chunks by their computed tokens, completely."""

from __future__ import annotations

import pytest

from tests.workers.chunks.builders import Bench, FakeHost, MakeLine, SubmitLines
from workers.chunks.worker_time import ChunkTime, WorkerTime


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def worker_time(clock: Clock) -> WorkerTime:
    return WorkerTime(clock)


def test_time_is_divided_by_the_tokens_of_each_chunk(worker_time: WorkerTime, clock: Clock) -> None:
    short, long = ChunkTime(), ChunkTime()
    with worker_time.divided_with(short), worker_time.divided_with(long):
        short.note(10)
        long.note(30)
        clock.now += 4
        assert worker_time.take(short) == 1_000_000
        long.note(30)
        clock.now += 1
        assert (worker_time.take(short), worker_time.take(long)) == (0, 4_000_000)


def test_time_without_tokens_belongs_to_those_that_come_next(worker_time: WorkerTime, clock: Clock) -> None:
    waiting, computed = ChunkTime(), ChunkTime()
    with worker_time.divided_with(waiting), worker_time.divided_with(computed):
        clock.now += 3
        assert worker_time.take(waiting) == 0
        computed.note(1)
        assert (worker_time.take(waiting), worker_time.take(computed)) == (0, 3_000_000)


def test_idle_time_is_nobodys(worker_time: WorkerTime, clock: Clock) -> None:
    chunk = ChunkTime()
    clock.now += 50
    with worker_time.divided_with(chunk):
        chunk.note(1)
        clock.now += 2
    clock.now += 50
    assert worker_time.take(chunk) == 2_000_000
    later = ChunkTime()
    with worker_time.divided_with(later):
        later.note(1)
        clock.now += 1
        assert worker_time.take(later) == 1_000_000


def test_asking_often_loses_no_part_of_a_microsecond(worker_time: WorkerTime, clock: Clock) -> None:
    chunks = [ChunkTime() for _ in range(3)]
    taken = 0
    with worker_time.divided_with(chunks[0]), worker_time.divided_with(chunks[1]), worker_time.divided_with(chunks[2]):
        for _ in range(1000):
            for chunk in chunks:
                chunk.note(1)
            clock.now += 0.000_001
            taken += sum(worker_time.take(chunk) for chunk in chunks)
    assert 996 <= taken <= 1000


TIMES = "SELECT (SELECT sum(worker_microseconds) FROM ledger), (SELECT sum(worker_microseconds) FROM batch)"


def test_a_chunks_time_stands_beside_its_tokens_in_the_ledger(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine, clock: Clock
) -> None:
    bench.change_parts(worker_time=WorkerTime(clock))
    submit_valid([line(0), line(1)])
    bench.start(bench.claim())
    host.wait_for(2)
    clock.now += 7
    host.answer(2)
    bench.join()
    assert bench.rows(TIMES) == [(7_000_000, 7_000_000)]


def test_a_prompts_tokens_count_once_and_again_after_the_engines_death(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    noted = ChunkTime()
    submit_valid([line(0)])
    bench.start(bench.claim())
    host.wait_for(1)
    [(new, owner)] = host.waiting.values()
    owner.on_computed = noted.note  # type: ignore[attr-defined]
    host.generate(40)
    host.generate(41)
    assert noted.num_tokens == len(new.prompt_token_ids) + 2
    owner.start_over()
    host.answer(1)
    bench.join()
    assert noted.num_tokens == 2 * len(new.prompt_token_ids) + 4
