"""Tests of a running stack's status messages, in a terminal and in a log."""

from __future__ import annotations

import io
import threading

import pytest

from cli.status.life import Life, Throughput, shown_life
from jobs.errors import ServiceError
from jobs.metrics import Overview, WorkerSeen


def overview(*output_tokens: int, num_batches: int = 2, num_running: int = 0) -> Overview:
    workers = [
        WorkerSeen(worker_id=f"w{number}", num_running=num_running, output_tokens=tokens)
        for number, tokens in enumerate(output_tokens)
    ]
    return Overview(num_batches=num_batches, num_lines=1000 * num_batches, num_done=412, workers=workers)


def test_the_line_tells_batches_lines_speed_and_workers() -> None:
    now, looks = [0.0], [overview(100, 50, num_running=8), overview(1100, 1050, num_running=8)]
    life = Life(lambda: looks.pop(0), monotonic=lambda: now[0])
    for seconds in (0.0, 4.0):
        now[0] = seconds
        life.look()
    assert life.line() == ("2 batches, 412/2,000 lines, 500 output tok/s, 2 workers with 16 requests, up 0:00:04")


def test_an_idle_stack_says_so() -> None:
    idle = Overview(num_batches=0, num_lines=0, num_done=0, workers=[])
    life = Life(lambda: idle, monotonic=lambda: 7.0)
    life.look()
    assert life.line() == "no batch is open, no worker runs, up 0:00:00"


def test_a_database_that_is_away_is_told_and_found_again() -> None:
    looks: list[Overview | None] = [None, overview(1, num_batches=1)]

    def look() -> Overview:
        seen = looks.pop(0)
        if seen is None:
            raise ServiceError("away")
        return seen

    life = Life(look, monotonic=lambda: 0.0)
    life.look()
    assert life.line() == "Postgres does not answer, up 0:00:00"
    life.look()
    assert life.line() == "1 batch, 412/1,000 lines, 1 worker, up 0:00:00"


def test_an_engine_that_starts_anew_takes_nothing_from_the_speed() -> None:
    throughput = Throughput()
    for second, totals in enumerate(({"a": 1000}, {"a": 1100}, {"a": 20}, {"a": 120, "b": 5000})):
        throughput.add(float(second), totals)
    assert throughput.tokens_per_second == pytest.approx(100 * 2 / 3, rel=0.2)


def test_a_log_gets_a_plain_line_every_so_many_looks() -> None:
    stream, looked = io.StringIO(), threading.Event()
    num_looks = [0]

    def look() -> Overview:
        num_looks[0] += 1
        if num_looks[0] > 10:
            looked.set()
        return overview(5)

    with shown_life(look, stream=stream, every=0.001, looks_a_line=5):
        assert looked.wait(20)
    lines = stream.getvalue().splitlines()
    assert 2 <= len(lines) <= num_looks[0] // 5
    assert {line.partition(", up ")[0] for line in lines} == {"tokenmill: 2 batches, 412/2,000 lines, 1 worker"}


def test_a_terminal_shows_the_line() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream, looked = Terminal(), threading.Event()
    looks = [0]

    def look() -> Overview:
        looks[0] += 1
        if looks[0] > 1:
            looked.set()
        return overview(5)

    with shown_life(look, stream=stream, every=0.001):
        assert looked.wait(20)
    assert "2 batches, 412/2,000 lines, 1 worker, up 0:00:00" in stream.getvalue()
