"""Tests of the engine host with broken rows: a second engine for each request, and a worker out after too many."""

from __future__ import annotations

import threading

import pytest

from engine.process.messages import FinishReason
from tests.workers.engine_host.builders import BREAKS, BREAKS_ONCE, LASTS, FakeEngine, HostRig, Recorder, submit
from workers.engine_host.broken import MAX_IN_A_ROW, RENEW_AFTER_SECONDS


def ends(recorders: list[Recorder]) -> list[FinishReason | None]:
    return [recorder.wait().finish_reason for recorder in recorders]


def test_a_broken_request_runs_again_on_a_new_engine_and_its_owner_hears_of_no_error(stage: HostRig) -> None:
    recorders = [stage.submit(1), stage.submit(BREAKS_ONCE)]
    stage.run_until_done(recorders)
    assert ends(recorders) == [FinishReason.STOP, FinishReason.STOP]
    assert stage.engine.generations == [[1, BREAKS_ONCE], [BREAKS_ONCE]]
    assert [recorder.num_broken for recorder in recorders] == [0, 1]


def test_a_second_end_by_a_broken_row_is_the_last(stage: HostRig) -> None:
    recorders = [stage.submit(BREAKS), stage.submit(1)]
    stage.run_until_done(recorders)
    assert ends(recorders) == [FinishReason.ERROR, FinishReason.STOP]
    assert stage.engine.generations == [[BREAKS, 1], [BREAKS]]
    assert (stage.broken, stage.gone) == ([], [])


def test_a_request_that_broke_on_another_worker_has_one_more_end(stage: HostRig) -> None:
    recorder = Recorder()
    recorder.num_broken = 1
    submit(stage.host, BREAKS_ONCE, recorder)
    stage.run_until_done([recorder])
    assert ends([recorder]) == [FinishReason.ERROR]
    assert len(stage.engine.generations) == 1


def test_the_engine_starts_anew_beneath_others_only_where_the_broken_one_has_waited_for_long(stage: HostRig) -> None:
    lasting, broken = stage.submit(LASTS), stage.submit(BREAKS_ONCE)
    stage.engine.work()
    stage.run_until_done([stage.submit(1)])
    stage.seconds = RENEW_AFTER_SECONDS - 99
    stage.run_until_done([stage.submit(2)])
    assert (broken.num_broken, len(stage.engine.generations)) == (1, 1)
    stage.seconds = RENEW_AFTER_SECONDS + 1
    stage.run_until_done([lasting, broken])
    assert ends([lasting, broken]) == [FinishReason.STOP] * 2
    assert (lasting.num_restarts, sorted(stage.engine.generations[1])) == (1, [BREAKS_ONCE, LASTS])


@pytest.mark.parametrize("lines", [1, MAX_IN_A_ROW - 1, MAX_IN_A_ROW])
def test_so_many_lines_in_a_row_without_a_good_row_condemn_the_engine(lines: int) -> None:
    stage = HostRig(FakeEngine())
    recorders = [stage.submit(BREAKS_ONCE) for _ in range(lines)]
    stage.run_until_done(recorders)
    assert ends(recorders) == [FinishReason.STOP] * lines
    assert len(stage.broken) == (lines == MAX_IN_A_ROW)
    stage.host.close()


def test_requests_of_one_line_count_once(stage: HostRig) -> None:
    recorders = [Recorder() for _ in range(MAX_IN_A_ROW)]
    for recorder in recorders:
        recorder.line = ("batch", 0)
        submit(stage.host, BREAKS_ONCE, recorder)
    stage.run_until_done(recorders)
    assert stage.broken == []


def test_a_good_row_between_begins_the_count_anew(stage: HostRig) -> None:
    for _ in range(2):
        recorders = [stage.submit(BREAKS) for _ in range(MAX_IN_A_ROW // 2 - 1)]
        stage.run_until_done(recorders)  # each ends twice
        stage.run_until_done([stage.submit(1)])
    assert stage.broken == []


def test_ends_add_up_over_the_lives_of_engines(stage: HostRig) -> None:
    for _ in range(MAX_IN_A_ROW // 2):
        assert stage.broken == []
        stage.run_until_done([stage.submit(BREAKS)])
    assert len(stage.broken) == 1


def test_a_condemned_engine_gets_nothing_more_and_what_is_given_back_runs_no_more(stage: HostRig) -> None:
    """So a worker that is out returns what waited for a new engine, which starts nevertheless."""
    recorders = [Recorder() for _ in range(MAX_IN_A_ROW)]
    ids: list[int] = []
    stage.engine.during_start = lambda: stage.host.abort(ids)
    ids += [submit(stage.host, BREAKS_ONCE, recorder) for recorder in recorders]
    stage.engine.work()
    while not stage.broken:
        threading.Event().wait(0.01)
    newcomer = stage.submit(1)
    stage.run_until_done([newcomer])
    assert stage.engine.generations == [[BREAKS_ONCE] * MAX_IN_A_ROW, [1]]
    assert [recorder.num_broken for recorder in recorders] == [1] * MAX_IN_A_ROW


def test_a_new_engine_that_does_not_start_is_gone() -> None:
    stage = HostRig(FakeEngine(starts=1))
    stage.submit(BREAKS_ONCE)
    while not stage.gone_event.wait(0.05):
        stage.seconds += 0.5
        stage.engine.work()
    assert stage.gone == ["no more starts"]
    stage.host.close()
