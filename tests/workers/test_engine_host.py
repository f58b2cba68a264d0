"""The engine host against a fake engine that dies on command."""

from __future__ import annotations

import logging
import queue
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType

import pytest

from engine.errors import EngineDied, EngineStartError
from engine.params import SamplingParams
from engine.process.messages import Decision, EngineInfo, EngineStats, FinishReason, Progress, TokenDelta
from engine.scheduling.decisions import Reason
from engine.scheduling.request import NewRequest
from workers.engine_host import MAX_FRUITLESS_DEATHS, WEDGED_SECONDS, EngineHost, Owner

POISON = 666


class FakeEngine:
    """Echoes each prompt back in one delta when told to work; dies when a poison prompt is among its requests."""

    def __init__(self, *, starts: int = 100) -> None:
        self.generations: list[list[int]] = []  # prompts' first tokens, per life
        self.during_start: Callable[[], None] = lambda: None
        self.aborted_children: list[tuple[int, int]] = []
        self.num_messages = 0
        self.decisions: list[Decision] = []
        self._starts_left = starts
        self._is_ready = False
        self._requests: dict[int, list[int]] = {}
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()

    def start(self) -> EngineInfo:
        if self._starts_left == 0:
            raise EngineStartError("no more starts")
        self._starts_left -= 1
        self._requests.clear()
        self._is_ready = False
        self.generations.append([])
        self.during_start()
        self._is_ready = True
        return EngineInfo(
            num_kv_blocks=8, block_size=16, max_model_len=64, vocab_size=9, eos_token_ids=(1,), device="cpu", dtype="f"
        )

    def add(self, *requests: NewRequest) -> None:
        assert self._is_ready, "the first message of a new engine is its configuration"
        self.num_messages += 1
        for new in requests:
            assert new.request_id not in self._requests, f"request {new.request_id} was handed over twice"
            self._requests[new.request_id] = list(new.prompt_token_ids)
            self.generations[-1].append(new.prompt_token_ids[0])

    def abort(self, request_ids: Iterable[int]) -> None:
        assert self._is_ready, "the first message of a new engine is its configuration"
        for request_id in request_ids:
            self._requests.pop(request_id, None)

    def abort_children(self, children: Iterable[tuple[int, int]]) -> None:
        self.aborted_children += children

    def kill(self) -> None:
        self._events.put("kill")

    def work(self) -> None:
        self._events.put("work")

    def poll(self, timeout_seconds: float) -> Progress | None:
        try:
            event = self._events.get(timeout=timeout_seconds)
        except queue.Empty:
            return None
        if event == "kill" or any(prompt[0] == POISON for prompt in self._requests.values()):
            raise EngineDied(-9, list(self._requests))
        done, self._requests = self._requests, {}
        deltas = [
            TokenDelta(request_id=request_id, token_ids=prompt, finish_reason=FinishReason.STOP)
            for request_id, prompt in done.items()
        ]
        return Progress(deltas, EngineStats(), 1, self.decisions)

    def close(self) -> None:
        self._requests.clear()


class Recorder:
    """Collects the deltas of one request; `finished` is set with the last."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.deltas: list[TokenDelta] = []
        self.num_restarts = 0
        self.finished = threading.Event()

    def receive(self, delta: TokenDelta) -> None:
        self.deltas.append(delta)
        if delta.finish_reason is not None:
            self.finished.set()

    def start_over(self) -> None:
        self.num_restarts += 1
        self.deltas.clear()

    def wait(self) -> TokenDelta:
        assert self.finished.wait(10), "the request never finished"
        return self.deltas[-1]


def submit(host: EngineHost, token: int, owner: Owner, *, n: int = 1) -> int:
    """Hand a prompt of one token over; return the request's id."""
    new = NewRequest(request_id=host.next_request_id(), prompt_token_ids=[token], params=SamplingParams(n=n))
    assert host.submit((new, owner)) == {}
    return new.request_id


class Stage:
    """A host on a fake engine; `run_until_done` lets the engine work until every recorder has finished."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.gone: list[str] = []
        self.gone_event = threading.Event()
        self.host = EngineHost(engine, on_gone=self._on_gone)
        self.host.start()

    def _on_gone(self, reason: str) -> None:
        self.gone.append(reason)
        self.gone_event.set()

    def submit(self, token: int, name: str = "") -> Recorder:
        recorder = Recorder(name)
        submit(self.host, token, recorder)
        return recorder

    def kill_and_wait(self) -> None:
        """Let the engine die, and return when it starts again."""
        wanted = len(self.engine.generations) + 1
        self.engine.kill()
        for _ in range(1000):
            if len(self.engine.generations) == wanted:
                return
            threading.Event().wait(0.01)
        raise AssertionError("the engine never started again")

    def run_until_done(self, recorders: Iterable[Recorder]) -> None:
        for recorder in recorders:
            for _ in range(100):
                self.engine.work()
                if recorder.finished.wait(0.05):
                    break


@pytest.fixture
def stage() -> Iterable[Stage]:
    stage = Stage(FakeEngine())
    yield stage
    stage.host.close()


def test_a_request_gets_its_tokens(stage: Stage) -> None:
    recorder = stage.submit(7)
    stage.engine.work()
    assert recorder.wait().token_ids == [7]


def test_decisions_are_logged_under_the_names_of_their_owners(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="workers.engine_host")
    recorders = [stage.submit(7, "batch_a line 3"), stage.submit(8, "batch_b line 1")]
    stage.engine.decisions = [
        Decision(
            step=4, seconds=2.5, request_id=2, index=0, reason=Reason.BEHIND, other_request_id=1, waited_seconds=1.0
        ),
        Decision(step=4, seconds=2.5, request_id=99, index=1, reason=Reason.NO_SEAT, waited_seconds=1.0),
    ]
    stage.run_until_done(recorders)
    assert caplog.messages == [
        "batch_b line 1 waits behind batch_a line 3, which is next",
        "request 99 is next and waits: every seat of the batch is taken",
    ]


def test_a_killed_engine_is_restarted_and_its_requests_run_again(stage: Stage) -> None:
    recorders = [stage.submit(token) for token in (1, 2, 3)]
    stage.engine.kill()
    stage.run_until_done(recorders)
    assert [recorder.wait().token_ids for recorder in recorders] == [[1], [2], [3]]
    assert [recorder.num_restarts for recorder in recorders] == [1, 1, 1]
    assert len(stage.engine.generations) == 2


def test_an_engine_that_starts_again_is_left_alone_until_it_is_ready(stage: Stage) -> None:
    """Chunks go on submitting and giving up while the engine loads its model anew."""
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


def test_a_request_that_kills_engines_fails_alone(stage: Stage) -> None:
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
    stage = Stage(BrokenEngine())
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


def test_a_lone_request_that_kills_engines_fails_and_the_engine_stays(stage: Stage) -> None:
    poison = stage.submit(POISON)
    stage.run_until_done([poison])
    assert poison.wait().finish_reason is FinishReason.ERROR
    assert stage.gone == []
    innocent = stage.submit(5)
    stage.run_until_done([innocent])
    assert innocent.wait().token_ids == [5]


def test_a_deadly_request_after_the_death_of_another_is_not_taken_for_a_broken_engine(stage: Stage) -> None:
    """The probe runs before the second one runs again: it shows that the engine works."""
    first_id = submit(stage.host, POISON, Recorder())
    stage.kill_and_wait()
    stage.host.abort([first_id])
    second = stage.submit(POISON)
    stage.run_until_done([second])
    assert second.wait().finish_reason is FinishReason.ERROR
    assert stage.gone == []


def test_an_engine_that_dies_idle_has_failed_at_nothing(stage: Stage) -> None:
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
    stage = Stage(RefusingEngine())
    poison = stage.submit(POISON)
    stage.run_until_done([poison])
    assert poison.wait().finish_reason is FinishReason.ERROR
    assert stage.gone == []
    stage.host.close()


def test_deaths_between_which_requests_finish_are_not_added_up(stage: Stage) -> None:
    for token in range(2 * MAX_FRUITLESS_DEATHS):
        recorder = stage.submit(token)
        stage.engine.kill()
        stage.run_until_done([recorder])
        assert recorder.wait().token_ids == [token]
    assert stage.gone == []


def test_newcomers_wait_while_suspects_run_and_then_finish(stage: Stage) -> None:
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


def test_an_aborted_request_is_not_heard_of_again(stage: Stage) -> None:
    recorder, other = Recorder(), stage.submit(2)
    request_id = submit(stage.host, 1, recorder)
    stage.host.abort([request_id])
    stage.engine.kill()
    stage.run_until_done([other])
    assert recorder.deltas == []
    assert other.wait().token_ids == [2]


def test_an_engine_that_does_not_start_again_is_reported_once() -> None:
    stage = Stage(FakeEngine(starts=1))
    stage.submit(1)
    stage.engine.kill()
    assert stage.gone_event.wait(10)
    assert stage.gone == ["no more starts"]
    stage.host.close()


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


class ChoosyEngine(FakeEngine):
    """Cannot send prompts that begin with 0."""

    def add(self, *requests: NewRequest) -> None:
        if any(new.prompt_token_ids[0] == 0 for new in requests):
            raise TypeError("no such type")
        super().add(*requests)


def test_a_request_that_cannot_be_sent_is_returned_and_forgotten_and_others_run() -> None:
    stage = Stage(ChoosyEngine())
    owners = [Recorder() for _ in range(3)]
    requests = [
        NewRequest(request_id=token, prompt_token_ids=[token], params=SamplingParams()) for token in range(len(owners))
    ]
    errors = stage.host.submit(*zip(requests, owners, strict=True))
    assert [str(error) for error in errors.values()] == ["no such type"]
    assert list(errors) == [0]
    stage.engine.kill()
    stage.run_until_done(owners[1:])
    assert [owner.wait().token_ids for owner in owners[1:]] == [[1], [2]]
    assert owners[0].deltas == []
    stage.host.close()


def test_requests_that_are_submitted_together_are_one_message(stage: Stage) -> None:
    owners = [Recorder() for _ in range(5)]
    stage.host.submit(
        *(
            (NewRequest(request_id=token, prompt_token_ids=[token], params=SamplingParams()), owner)
            for token, owner in enumerate(owners)
        )
    )
    stage.run_until_done(owners)
    assert [owner.wait().token_ids for owner in owners] == [[token] for token in range(5)]
    assert stage.engine.num_messages == 1


def test_a_request_that_cannot_be_sent_after_a_restart_fails_alone() -> None:
    stage = Stage(ChoosyEngine())
    first, held = stage.submit(1), []
    stage.engine.during_start = lambda: held.extend([stage.submit(0), stage.submit(2)])
    stage.engine.kill()
    stage.run_until_done([first])
    stage.run_until_done(held)
    refusal, answer = (recorder.wait() for recorder in held)
    assert "no such type" in str(refusal.error)
    assert answer.token_ids == [2]
    stage.host.close()


def test_one_child_is_stopped_and_its_request_goes_on(stage: Stage) -> None:
    recorder = Recorder()
    request_id = submit(stage.host, 5, recorder, n=2)
    stage.host.abort_child(request_id, 1)
    stage.host.abort_child(request_id + 1, 0)  # unknown
    assert stage.engine.aborted_children == [(request_id, 1)]
    stage.run_until_done([recorder])
    assert recorder.finished.is_set()


class Calls:
    """Counts the calls of Python functions in the thread that begins."""

    def __init__(self) -> None:
        self.num = 0

    def begin(self) -> None:
        sys.setprofile(self._count)

    def end(self) -> None:
        sys.setprofile(None)

    def _count(self, _frame: FrameType, event: str, _argument: object) -> None:
        self.num += event == "call"


class CountingEngine(FakeEngine):
    """Counts what the host's reader does between its polls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Calls()

    def poll(self, timeout_seconds: float) -> Progress | None:
        self.calls.end()
        try:
            return super().poll(timeout_seconds)
        finally:
            self.calls.begin()


def test_what_a_request_costs_does_not_grow_with_those_in_the_engine() -> None:
    engine = CountingEngine()
    stage = Stage(engine)
    first, last = Calls(), Calls()
    first.begin()
    requests = [stage.submit(3)]
    first.end()
    requests += [stage.submit(3) for _ in range(200)]
    last.begin()
    requests.append(stage.submit(3))
    last.end()
    assert last.num <= first.num
    engine.work()
    for request in requests:
        request.wait()
    stage.host.close()
    assert engine.calls.num < 30 * len(requests)
