"""Tests of the engine host's requests to its engine and the answers, while the engine lives."""

from __future__ import annotations

import logging
import sys
from types import FrameType

import pytest

from engine.params import SamplingParams
from engine.process.messages import Decision, Progress
from engine.scheduling.decisions import Reason
from engine.scheduling.request import NewRequest
from tests.workers.engine_host.builders import FakeEngine, HostRig, Recorder, submit


def test_a_request_gets_its_tokens(stage: HostRig) -> None:
    recorder = stage.submit(7)
    stage.engine.work()
    assert recorder.wait().token_ids == [7]


def test_decisions_are_logged_under_the_names_of_their_owners(stage: HostRig, caplog: pytest.LogCaptureFixture) -> None:
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


def test_an_aborted_request_is_not_heard_of_again(stage: HostRig) -> None:
    recorder, other = Recorder(), stage.submit(2)
    request_id = submit(stage.host, 1, recorder)
    stage.host.abort([request_id])
    stage.engine.kill()
    stage.run_until_done([other])
    assert recorder.deltas == []
    assert other.wait().token_ids == [2]


class ChoosyEngine(FakeEngine):
    """Cannot send prompts that begin with 0."""

    def add(self, *requests: NewRequest) -> None:
        if any(new.prompt_token_ids[0] == 0 for new in requests):
            raise TypeError("no such type")
        super().add(*requests)


def test_a_request_that_cannot_be_sent_is_returned_and_forgotten_and_others_run() -> None:
    stage = HostRig(ChoosyEngine())
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


def test_requests_that_are_submitted_together_are_one_message(stage: HostRig) -> None:
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
    stage = HostRig(ChoosyEngine())
    first, held = stage.submit(1), []
    stage.engine.during_start = lambda: held.extend([stage.submit(0), stage.submit(2)])
    stage.engine.kill()
    stage.run_until_done([first])
    stage.run_until_done(held)
    refusal, answer = (recorder.wait() for recorder in held)
    assert "no such type" in str(refusal.error)
    assert answer.token_ids == [2]
    stage.host.close()


def test_one_child_is_stopped_and_its_request_goes_on(stage: HostRig) -> None:
    recorder = Recorder()
    request_id = submit(stage.host, 5, recorder, n=2)
    stage.host.abort_child(request_id, 1)
    stage.host.abort_child(request_id + 1, 0)  # unknown
    assert stage.engine.aborted_children == [(request_id, 1)]
    stage.run_until_done([recorder])
    assert recorder.finished.is_set()


class Calls:
    """Counts the calls of Python functions in the thread that starts it."""

    def __init__(self) -> None:
        self.num = 0

    def begin(self) -> None:
        sys.setprofile(self._count)

    def end(self) -> None:
        sys.setprofile(None)

    def _count(self, _frame: FrameType, event: str, _argument: object) -> None:
        self.num += event == "call"


class CountingEngine(FakeEngine):
    """Counts the calls of the host's reader between its polls."""

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
    stage = HostRig(engine)
    requests = []

    def cost() -> int:
        calls = Calls()
        calls.begin()
        requests.append(stage.submit(3))
        calls.end()
        return calls.num

    first = cost()
    requests += [stage.submit(3) for _ in range(200)]
    assert min(cost() for _ in range(5)) <= first  # the minimum: the host's thread may be counted, too
    engine.work()
    for request in requests:
        request.wait()
    stage.host.close()
    assert engine.calls.num < 30 * len(requests)
