"""How long the engine host waits for an engine that says nothing."""

from __future__ import annotations

import threading

from engine.errors import EngineDied
from engine.scheduling.request import NewRequest
from tests.workers.engine_host.builders import FakeEngine, Recorder, submit
from workers.engine_host import WEDGED_SECONDS, EngineHost


def test_an_engine_silent_for_too_long_is_ended_and_its_requests_run_again() -> None:
    clock = [0.0]
    engine = FakeEngine()
    host = EngineHost(engine, on_gone=lambda reason: None, monotonic=lambda: clock[0])
    host.start()
    recorder = Recorder()
    submit(host, 3, recorder)
    clock[0] += WEDGED_SECONDS + 1
    while len(engine.generations) < 2:
        threading.Event().wait(0.01)
    engine.work()
    assert recorder.wait().token_ids == [3]
    assert recorder.num_restarts == 1
    host.close()


def test_an_engine_may_be_silent_for_five_times_its_slowest_step() -> None:
    clock = [0.0]
    engine = FakeEngine()
    host = EngineHost(engine, on_gone=lambda reason: None, monotonic=lambda: clock[0])
    host.start()
    recorder = Recorder()
    submit(host, 3, recorder)
    clock[0] += 20
    engine.work()
    recorder.wait()
    clock[0] += 5 * 20
    assert not host.is_wedged
    clock[0] += 1
    while len(engine.generations) < 2:
        threading.Event().wait(0.01)
    host.close()


def test_an_engine_whose_first_step_is_its_slowest_gets_through_it_in_another_life() -> None:
    clock = [0.0]
    engine = FakeEngine()
    host = EngineHost(engine, on_gone=lambda reason: None, monotonic=lambda: clock[0])
    host.start()
    recorder = Recorder()
    submit(host, 3, recorder)
    clock[0] += WEDGED_SECONDS + 1
    while len(engine.generations) < 2 or not engine.generations[1]:
        threading.Event().wait(0.01)
    clock[0] += 4 * WEDGED_SECONDS
    assert not host.is_wedged
    engine.work()
    assert recorder.wait().token_ids == [3]
    assert len(engine.generations) == 2
    host.close()


class StuckEngine(FakeEngine):
    """Its first life reads nothing: whoever hands a request over waits until it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waited_for = threading.Event()
        self._closed = threading.Event()

    def add(self, *requests: NewRequest) -> None:
        if len(self.generations) == 1:
            self.is_waited_for.set()
            assert self._closed.wait(30), "nobody closes the engine"
            raise EngineDied(None, [new.request_id for new in requests])
        super().add(*requests)

    def close(self) -> None:
        self._closed.set()
        super().close()


def test_an_engine_that_reads_nothing_is_ended_though_somebody_waits_to_hand_it_a_request() -> None:
    clock = [0.0]
    engine = StuckEngine()
    host = EngineHost(engine, on_gone=lambda reason: None, monotonic=lambda: clock[0])
    host.start()
    recorder = Recorder()
    submitting = threading.Thread(target=submit, args=(host, 3, recorder), daemon=True)
    submitting.start()
    assert engine.is_waited_for.wait(10)
    clock[0] += WEDGED_SECONDS + 1
    submitting.join(10)
    assert not submitting.is_alive()
    engine.work()
    assert recorder.wait().token_ids == [3]
    host.close()
