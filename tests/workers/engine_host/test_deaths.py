"""Tests of the engine host with an engine that dies: what is run again, and which request is blamed."""

from __future__ import annotations

import threading

from engine.errors import EngineDied
from engine.process.messages import EngineStats, FinishReason, Progress, TokenDelta
from tests.workers.engine_host.builders import POISON, FakeEngine, HostRig, Recorder, submit
from workers.engine_host.host import MAX_FRUITLESS_DEATHS


def test_a_killed_engine_is_restarted_and_its_requests_run_again(stage: HostRig) -> None:
    recorders = [stage.submit(token) for token in (1, 2, 3)]
    stage.engine.kill()
    stage.run_until_done(recorders)
    assert [recorder.wait().token_ids for recorder in recorders] == [[1], [2], [3]]
    assert [recorder.num_restarts for recorder in recorders] == [1, 1, 1]
    assert len(stage.engine.generations) == 2


def test_an_engine_that_starts_again_is_left_alone_until_it_is_ready(stage: HostRig) -> None:
    """Chunks keep submitting and aborting while the engine reloads its model."""
    first, given_up, newcomers = stage.submit(1), Recorder(), []
    given_up_id = submit(stage.host, 2, given_up)

    def meanwhile() -> None:
        newcomers.append(stage.submit(5))
        stage.host.abort([given_up_id])

    stage.engine.during_start = meanwhile
    stage.engine.kill()
    stage.run_until_done([first])
    stage.run_until_done(newcomers)
    assert [recorder.wait().token_ids for recorder in (first, *newcomers)] == [[1], [5]]
    assert (first.num_restarts, newcomers[0].num_restarts) == (1, 0)
    assert given_up.deltas == []


def test_a_request_that_kills_engines_fails_alone(stage: HostRig) -> None:
    innocent = [stage.submit(token) for token in range(8)]
    poison = stage.submit(POISON)
    stage.run_until_done([*innocent, poison])
    assert all(recorder.wait().finish_reason is FinishReason.STOP for recorder in innocent)
    last = poison.wait()
    assert last.finish_reason is FinishReason.ERROR
    assert last.error is not None
    assert "died" in last.error


class BrokenEngine(FakeEngine):
    """Starts well and dies on its first step, whatever it runs."""

    def poll(self, timeout_seconds: float) -> Progress | None:
        if self._requests:
            raise EngineDied(-11, list(self._requests))
        return super().poll(0.01)


def test_an_engine_that_dies_on_every_first_step_fails_no_request() -> None:
    stage = HostRig(BrokenEngine())
    requests = [stage.submit(token) for token in range(6)]
    assert stage.gone_event.wait(10)
    newcomer = stage.submit(7)
    stage.host.abort([1, 2])
    assert [recorder.deltas for recorder in (*requests, newcomer)] == [[]] * 7
    assert len(stage.engine.generations) == MAX_FRUITLESS_DEATHS
    assert stage.host.seconds_since_progress() == 0, "the leases are held until their chunks are given back"
    assert len(stage.gone) == 1
    assert "died 3 times" in stage.gone[0]
    stage.host.close()


def test_a_lone_request_that_kills_engines_fails_and_the_engine_stays(stage: HostRig) -> None:
    poison = stage.submit(POISON)
    stage.run_until_done([poison])
    assert poison.wait().finish_reason is FinishReason.ERROR
    assert stage.gone == []
    innocent = stage.submit(5)
    stage.run_until_done([innocent])
    assert innocent.wait().token_ids == [5]


def test_a_deadly_request_after_the_death_of_another_is_not_taken_for_a_broken_engine(stage: HostRig) -> None:
    """The probe runs before the second one runs again: it shows that the engine works."""
    first_id = submit(stage.host, POISON, Recorder())
    stage.kill_and_wait()
    stage.host.abort([first_id])
    second = stage.submit(POISON)
    stage.run_until_done([second])
    assert second.wait().finish_reason is FinishReason.ERROR
    assert stage.gone == []


def test_an_engine_that_dies_idle_has_failed_at_nothing(stage: HostRig) -> None:
    for _ in range(MAX_FRUITLESS_DEATHS + 1):
        stage.kill_and_wait()
    assert stage.gone == []
    recorder = stage.submit(5)
    stage.run_until_done([recorder])
    assert recorder.wait().token_ids == [5]


class RefusingEngine(FakeEngine):
    """Has no room for the prompt of a probe, and answers so."""

    def poll(self, timeout_seconds: float) -> Progress | None:
        for request_id, prompt in list(self._requests.items()):
            if len(prompt) > 1:
                del self._requests[request_id]
                refusal = TokenDelta(request_id=request_id, finish_reason=FinishReason.ERROR, error="too long")
                return Progress([refusal], EngineStats(), 1, [])
        return super().poll(timeout_seconds)


def test_an_engine_that_refuses_a_probe_answers_and_is_not_to_blame() -> None:
    stage = HostRig(RefusingEngine())
    poison = stage.submit(POISON)
    stage.run_until_done([poison])
    assert poison.wait().finish_reason is FinishReason.ERROR
    assert stage.gone == []
    stage.host.close()


def test_deaths_between_which_requests_finish_are_not_added_up(stage: HostRig) -> None:
    for token in range(2 * MAX_FRUITLESS_DEATHS):
        recorder = stage.submit(token)
        stage.engine.kill()
        stage.run_until_done([recorder])
        assert recorder.wait().token_ids == [token]
    assert stage.gone == []


def test_newcomers_wait_while_suspects_run_and_then_finish(stage: HostRig) -> None:
    poison, innocent = stage.submit(POISON), stage.submit(1)
    stage.engine.kill()
    stage.engine.work()  # the second death starts the isolation
    while len(stage.engine.generations) < 3:
        threading.Event().wait(0.01)
    newcomer = stage.submit(5)
    stage.run_until_done([poison, innocent, newcomer])
    assert newcomer.wait().token_ids == [5]
    assert newcomer.num_restarts == 0
    assert innocent.wait().finish_reason is FinishReason.STOP


def test_an_engine_that_does_not_start_again_is_reported_once() -> None:
    stage = HostRig(FakeEngine(starts=1))
    stage.submit(1)
    stage.engine.kill()
    assert stage.gone_event.wait(10)
    assert stage.gone == ["no more starts"]
    stage.host.close()
