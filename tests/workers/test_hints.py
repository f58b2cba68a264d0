"""Tests of hints through a real broker: they arrive, do not pile up, and cost little while it is down."""

from __future__ import annotations

import queue
from datetime import timedelta

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker

from jobs.ids import new_id
from workers.app import RUN_CHUNK_TASK, make_app, model_queue
from workers.hints import MOST_QUEUED, PAUSE_SECONDS, HintSender


def test_a_hint_arrives_on_the_queue_of_its_model(valkey_url: str) -> None:
    app: Celery = make_app(valkey_url)
    assert HintSender(app).run_chunk(7, model="org/model")
    with app.connection_for_read() as connection, connection.SimpleQueue("model.org/model") as queue:
        message = queue.get(timeout=120)
        message.ack()
    assert message.headers["task"] == "tokenmill.run_chunk"
    assert message.payload[0] == [7]


@pytest.mark.parametrize("seconds_ahead", [-60.0, 60.0])
def test_a_hint_from_a_machine_with_another_clock_is_followed(
    valkey_url: str, seconds_ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending: Celery = make_app(valkey_url)
    clock = sending.now
    monkeypatch.setattr(sending, "now", lambda: clock() + timedelta(seconds=seconds_ahead))
    model, arrived = new_id("model"), queue.SimpleQueue[int]()
    working: Celery = make_app(valkey_url, queue=model_queue(model))

    @working.task(name=RUN_CHUNK_TASK, shared=False)
    def follow(chunk_id: int) -> None:
        arrived.put(chunk_id)

    assert HintSender(sending).run_chunk(7, model=model)
    # The level is the root logger's and must stay: with the default no warning of later tests would appear.
    with start_worker(working, pool="solo", perform_ping_check=False, loglevel="WARNING"):
        assert arrived.get(timeout=120) == 7


def test_a_broker_that_is_down_drops_hints_and_is_not_tried_at_once_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    sender = HintSender(make_app("redis://127.0.0.1:1/0"), monotonic=lambda: clock[0])
    waits: list[float] = []
    monkeypatch.setattr("kombu.utils.functional.sleep", waits.append)
    tried: list[str] = []
    has_room = sender._has_room

    def noted(queue: str) -> bool:
        tried.append(queue)
        return has_room(queue)

    monkeypatch.setattr(sender, "_has_room", noted)
    assert not sender.validate("batch_1")
    assert sum(waits) == 0, "a dispatcher's tick waits for nobody"
    assert not sender.validate("batch_2")
    assert len(tried) == 1, "no second try during the pause"
    clock[0] += PAUSE_SECONDS + 1
    assert not sender.validate("batch_3")
    assert len(tried) == 2


def test_hints_that_nobody_reads_do_not_pile_up(valkey_url: str) -> None:
    app: Celery = make_app(valkey_url)
    sender, model = HintSender(app), new_id("model")

    def send(count: int) -> int:
        return sum(sender.run_chunk(number, model=model) for number in range(count))

    with app.connection_for_read() as connection, connection.SimpleQueue(model_queue(model)) as unread:
        assert send(3 * MOST_QUEUED) == MOST_QUEUED
        assert unread.qsize() == MOST_QUEUED
        for _ in range(MOST_QUEUED):  # a worker has come
            unread.get(timeout=120).ack()
        assert send(5) == 5
        assert unread.qsize() == 5
