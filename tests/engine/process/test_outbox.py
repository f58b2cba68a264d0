from __future__ import annotations

import threading
from dataclasses import fields
from queue import SimpleQueue

import pytest

from engine.outputs import FinishReason, TokenDelta
from engine.process import outbox as outbox_module
from engine.process.messages import Progress, decode_from_engine, encode
from engine.process.outbox import Outbox
from engine.scheduling.decisions import Decision, Reason
from engine.stats import EngineStats, SchedulerCounters, SizeHistogram


class SlowReader:
    """Takes one message at a time, on command."""

    def __init__(self) -> None:
        self.messages: SimpleQueue[Progress] = SimpleQueue()
        self._turns = threading.Semaphore(0)

    def receive(self, message: Progress) -> None:
        self._turns.acquire()
        self.messages.put(message)

    def receive_one(self) -> Progress:
        self._turns.release()
        return self.messages.get(timeout=30)


def stats_after(num_steps: int) -> EngineStats:
    return EngineStats(scheduler=SchedulerCounters(num_steps=num_steps))


def put(outbox: Outbox, step: int, *tokens: tuple[int, int], finish: FinishReason | None = None) -> None:
    deltas = [TokenDelta(request_id=request, token_ids=[token], finish_reason=finish) for request, token in tokens]
    outbox.put(deltas, stats_after(step))


def test_a_slow_reader_gets_every_token_in_order_without_stalling_the_loop() -> None:
    reader = SlowReader()
    outbox = Outbox(reader.receive)
    for step in range(1000):  # nobody reads yet, and every put returns
        put(outbox, step, (1, step), (2, -step))
    put(outbox, 1000, (1, 1000), finish=FinishReason.STOP)
    outbox.put([], stats_after(1001))
    received: dict[int, list[int]] = {1: [], 2: []}
    ended = {}
    num_messages, step = 0, -1
    while step < 1001:
        message = reader.receive_one()
        num_messages, step = num_messages + 1, message.step
        for delta in message.outputs:
            received[delta.request_id] += delta.token_ids
            ended[delta.request_id] = delta.finish_reason
    assert received == {1: [*range(1001)], 2: [-step for step in range(1000)]}
    assert ended == {1: FinishReason.STOP, 2: None}
    assert num_messages <= 2  # the first one, and all that gathered behind it


def tokens_of(messages: list[Progress]) -> list[list[list[int]]]:
    return [[delta.token_ids for delta in message.outputs] for message in messages]


def test_closing_sends_what_is_left() -> None:
    sent: list[Progress] = []
    outbox = Outbox(sent.append)
    put(outbox, 1, (1, 5))
    outbox.close()
    assert [token for message in sent for delta in message.outputs for token in delta.token_ids] == [5]


def decision_of(request_id: int) -> Decision:
    return Decision(step=1, seconds=0.5, request_id=request_id, index=0, reason=Reason.NO_SEAT, waited_seconds=0.25)


def test_decisions_arrive_once_and_only_the_last_ones_wait_for_a_slow_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "MAX_DECISIONS", 2)
    reader = SlowReader()
    outbox = Outbox(reader.receive)
    outbox.put([], stats_after(0))
    for request_id in range(1, 4):
        outbox.put([], stats_after(request_id), [decision_of(request_id)])
    messages = [reader.receive_one()]
    while messages[-1].step < 3:
        messages.append(reader.receive_one())
    assert [decision.request_id for message in messages for decision in message.decisions][-2:] == [2, 3]
    outbox.put([], stats_after(4))
    assert reader.receive_one().decisions == []
    assert decode_from_engine(encode(messages[-1])) == messages[-1]


def test_every_statistic_can_be_reported_however_long_the_engine_runs() -> None:
    huge = 2**63 - 1
    largest = {"int": huge, "float": 1e30, "float | None": 1e30, "SizeHistogram": SizeHistogram([huge], huge)}
    stats = EngineStats()
    parts = [part for part in (getattr(stats, one.name) for one in fields(stats)) if part is not stats.timings]
    for part in parts:
        for number in fields(part):
            setattr(part, number.name, largest[str(number.type)])
    assert decode_from_engine(encode(Progress([], stats, 1))) == Progress([], stats, 1)


def test_an_error_of_the_sender_reaches_the_loop() -> None:
    def fail(message: Progress) -> None:
        raise TypeError("cannot be encoded")

    outbox = Outbox(fail)
    put(outbox, 1, (1, 5))
    outbox.close()
    with pytest.raises(TypeError, match="cannot be encoded"):
        put(outbox, 2, (1, 6))


def test_a_reader_that_is_gone_is_noticed() -> None:
    def fail(message: Progress) -> None:
        raise BrokenPipeError

    outbox = Outbox(fail)
    put(outbox, 1, (1, 5))
    outbox.close()
    assert not outbox.is_open


def test_a_list_of_running_requests_waits_for_the_next_message_and_is_sent_once() -> None:
    sent: list[Progress] = []
    reader = SlowReader()
    outbox = Outbox(reader.receive)
    outbox.put([], stats_after(1), running_ids=[1, 2])
    outbox.put([], stats_after(2), running_ids=[2, 3])
    outbox.put([], stats_after(3))
    while not sent or sent[-1].step < 3:
        sent.append(reader.receive_one())
    assert [message.running_ids for message in sent if message.running_ids is not None][-1] == [2, 3]
    outbox.put([], stats_after(4))
    assert reader.receive_one().running_ids is None
    assert decode_from_engine(encode(sent[-1])) == sent[-1]
