"""Tests of the measurement of the host's time per decode step: which steps it runs, and what it prints."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab import host_steps


def test_every_sequence_gets_the_same_token_in_each_step_and_none_ends() -> None:
    engine = host_steps._engine(3, max_tokens=40)
    tokens: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for _ in range(10):
        for delta in (*engine.step(), *engine.release()):
            tokens[delta.request_id] += delta.token_ids
            assert delta.finish_reason is None
    assert tokens == {number: [5] * 9 for number in tokens}  # the last step's are read in the next
    assert engine.scheduler.last_plan.counts.tolist() == [1, 1, 1]


def test_a_step_takes_some_time() -> None:
    engine = host_steps.ready_engine(3, num_steps=2)
    assert host_steps.milliseconds_per_step(engine, num_steps=2) > 0.0
    assert engine.scheduler.num_running == 3


def test_checkouts_are_measured_in_turn_and_medians_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    values = iter([2.0, 9.0, 1.0, 8.0, 4.0, 7.0])
    measured: list[Path] = []

    @contextmanager
    def serving(checkout: Path, arguments: Namespace) -> Iterator[Callable[[], dict[int, float]]]:
        def measure() -> dict[int, float]:
            measured.append(checkout)
            return dict.fromkeys(arguments.sequences, next(values))

        yield measure

    monkeypatch.setattr(host_steps, "_serving", serving)
    host_steps.main(["--sequences", "8", "--repeats", "3", "--beside", str(tmp_path)])
    assert measured == [host_steps._HERE, tmp_path.resolve()] * 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["this", "8:", "2.00", "ms", "(2.00,", "1.00,", "4.00)"]
    assert lines[2].split() == ["beside", "8:", "8.00", "ms", "(9.00,", "8.00,", "7.00)"]
