"""Tests of the lines that a worker reports as running: only those with a seat in its engine."""

from __future__ import annotations

import threading

from jobs.chunks.fleet import RunningLines
from tests.workers.engine_host.builders import HostRig, Recorder, submit
from workers.chunks.running import RunningCount
from workers.engine_host.host import EngineHost


def submitted(stage: HostRig, batch_id: str, line_nos: range) -> list[int]:
    return [submit(stage.host, 1, Recorder(line=(batch_id, line_no))) for line_no in line_nos]


def until(host: EngineHost, expected: dict[str, RunningLines]) -> None:
    for _ in range(1000):
        if host.running_lines() == expected:
            return
        threading.Event().wait(0.01)
    raise AssertionError(f"{host.running_lines()} instead of {expected}")


def test_lines_that_wait_for_a_seat_do_not_run(stage: HostRig) -> None:
    first, second = submitted(stage, "a", range(384)), submitted(stage, "b", range(5))
    stage.engine.report([*first[:126], *second[:2]])
    until(stage.host, {"a": RunningLines(num_lines=126), "b": RunningLines(num_lines=2)})


def test_a_line_of_several_prompts_runs_once_and_an_ended_one_no_more(stage: HostRig) -> None:
    recorders = [Recorder(line=("a", 7)) for _ in range(2)]
    ids = [submit(stage.host, token, recorder) for token, recorder in enumerate(recorders, start=1)]
    stage.engine.report(ids)
    until(stage.host, {"a": RunningLines(num_lines=1)})
    stage.run_until_done(recorders)
    until(stage.host, {})


def test_requests_that_belong_to_no_line_are_not_counted(stage: HostRig) -> None:
    nobodys = Recorder()
    nobodys.line = None
    stage.engine.report([submit(stage.host, 1, nobodys)])
    submitted(stage, "a", range(1))
    until(stage.host, {"a": RunningLines(num_lines=0)})


def test_an_engine_that_died_runs_nothing_until_it_reports_again(stage: HostRig) -> None:
    ids = submitted(stage, "a", range(3))
    stage.engine.report(ids)
    until(stage.host, {"a": RunningLines(num_lines=3)})
    stage.kill_and_wait()
    until(stage.host, {"a": RunningLines(num_lines=0)})
    stage.engine.report(ids[:1])
    until(stage.host, {"a": RunningLines(num_lines=1)})


def test_tokens_of_unfinished_lines_are_summed_by_batch(stage: HostRig) -> None:
    recorders = [Recorder(line=("a", line_no)) for line_no in range(2)]
    for number, recorder in enumerate(recorders, start=1):
        submit(stage.host, 1, recorder)
        recorder.num_output_tokens = 100 * number
    assert stage.host.running_lines() == {"a": RunningLines(num_lines=0, num_output_tokens=300)}


def test_workers_without_an_engine_process_count_what_they_compute() -> None:
    count = RunningCount()
    with count.including("a", 5), count.including("b", 1), count.including("a", 2):
        assert count.by_batch() == {"a": RunningLines(num_lines=7), "b": RunningLines(num_lines=1)}
    assert count.by_batch() == {}
