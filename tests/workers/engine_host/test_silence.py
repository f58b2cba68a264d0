"""Tests of the engine host's timeouts for a silent engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from engine.errors import EngineDied
from engine.process.silence import REMEMBERED_SECONDS, LongestSilence
from engine.scheduling.request import NewRequest
from tests.workers.engine_host.builders import FakeEngine, Recorder, submit
from workers.engine_host.host import WEDGED_SECONDS, EngineHost


class Silence:
    """A host on a fake engine, and a clock that a test moves."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.seconds = 0.0
        self.recorder = Recorder()
        self.host = EngineHost(engine, on_gone=lambda reason: None, monotonic=lambda: self.seconds)
        self.host.start()

    def submit(self) -> None:
        submit(self.host, 3, self.recorder)

    def wait_for_another_life(self, *, with_requests: bool = False) -> None:
        lives = self.engine.generations
        while len(lives) < 2 or (with_requests and not lives[1]):
            threading.Event().wait(0.01)

    def be_silent(self, seconds: float) -> None:
        """Let a request be answered after this time."""
        recorder = Recorder()
        submit(self.host, 3, recorder)
        self.seconds += seconds
        self.engine.work()
        recorder.wait()

    def assert_answered(self) -> None:
        self.engine.work()
        assert self.recorder.wait().token_ids == [3]


MakeSilence = Callable[..., Silence]


@pytest.fixture
def silence() -> Iterator[MakeSilence]:
    made: list[Silence] = []

    def make(engine: FakeEngine | None = None) -> Silence:
        made.append(Silence(engine or FakeEngine()))
        return made[-1]

    yield make
    for each in made:
        each.host.close()


def test_an_engine_silent_for_too_long_is_ended_and_its_requests_run_again(silence: MakeSilence) -> None:
    stage = silence()
    stage.submit()
    stage.seconds += WEDGED_SECONDS + 1
    stage.wait_for_another_life()
    stage.assert_answered()
    assert stage.recorder.num_restarts == 1


def test_an_engine_may_be_silent_for_five_times_its_slowest_step(silence: MakeSilence) -> None:
    stage = silence()
    stage.submit()
    stage.seconds += 20
    stage.assert_answered()
    stage.seconds += 5 * 20
    assert not stage.host.is_wedged
    stage.seconds += 1
    stage.wait_for_another_life()


def test_one_long_freeze_does_not_make_the_wait_for_the_next_one_long_for_ever(silence: MakeSilence) -> None:
    stage = silence()
    stage.be_silent(WEDGED_SECONDS - 1)
    stage.seconds += 4 * WEDGED_SECONDS
    assert not stage.host.is_wedged
    while stage.seconds < 2 * REMEMBERED_SECONDS + 5 * WEDGED_SECONDS:
        stage.be_silent(5)
    stage.seconds += WEDGED_SECONDS + 1
    assert stage.host.is_wedged


def test_an_engine_whose_first_step_is_its_slowest_gets_through_it_in_another_life(silence: MakeSilence) -> None:
    stage = silence()
    stage.submit()
    stage.seconds += WEDGED_SECONDS + 1
    stage.wait_for_another_life(with_requests=True)
    stage.seconds += 4 * WEDGED_SECONDS
    assert not stage.host.is_wedged
    stage.assert_answered()
    assert len(stage.engine.generations) == 2


class StuckEngine(FakeEngine):
    """Its first life reads nothing: submissions block until it is closed."""

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


def test_an_engine_that_reads_nothing_is_ended_though_somebody_waits_to_hand_it_a_request(
    silence: MakeSilence,
) -> None:
    engine = StuckEngine()
    stage = silence(engine)
    submitting = threading.Thread(target=stage.submit, daemon=True)
    submitting.start()
    assert engine.is_waited_for.wait(10)
    stage.seconds += WEDGED_SECONDS + 1
    submitting.join(10)
    assert not submitting.is_alive()
    stage.assert_answered()


def test_a_silence_counts_for_one_span_and_the_next() -> None:
    longest = LongestSilence()
    assert longest.at(0) == 0
    longest.note(7, now=10)
    longest.note(3, now=20)
    assert longest.at(REMEMBERED_SECONDS - 1) == 7
    longest.note(5, now=REMEMBERED_SECONDS + 1)
    assert longest.at(2 * REMEMBERED_SECONDS - 1) == 7
    assert longest.at(2 * REMEMBERED_SECONDS) == 5
    assert longest.at(4 * REMEMBERED_SECONDS) == 0
