"""Tests of a worker that starts before its server: what is waited for, what ends it, and what the fleet shows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from wsgiref.simple_server import WSGIServer

import httpx
import pytest
from prometheus_client import CollectorRegistry, start_http_server
from sqlalchemy import event, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.chunks import fleet, unserved
from jobs.errors import InputError, ServiceError
from jobs.settings import Settings
from jobs.tables import Batch
from jobs.telemetry import serving
from tests.workers.remote.fake_server import FakeServer, Request
from tests.workers.remote.misbehaviours import MISBEHAVIOURS
from workers.remote import checks, identity, main
from workers.remote.checks import first_check
from workers.remote.exchange import Address
from workers.remote.identity import AwayError, identify
from workers.remote.waiting import WaitingWorker, wait_for


def find(server: FakeServer) -> str:
    """Ask a server what it is, as a worker does at its start; return the name of its model."""
    address = Address(url=server.url)
    found = identify(address, named=None, served=None)
    return first_check(address, found, has_tokenizer=False)[1]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_SECONDS", 0.3)
    monkeypatch.setattr(checks, "_SECONDS", 0.3)


@pytest.mark.parametrize("name", ["429", "500", "503", "dropped", "hang"])
def test_a_server_that_cannot_answer_yet_is_waited_for(server: FakeServer, name: str) -> None:
    server.gets["/v1/models"] = MISBEHAVIOURS[name]
    with pytest.raises(AwayError):
        find(server)


@pytest.mark.parametrize("name", ["401", "404", "redirect", "html"])
def test_a_server_that_denies_an_answer_ends_the_worker(server: FakeServer, name: str) -> None:
    server.gets["/v1/models"] = MISBEHAVIOURS[name]
    with pytest.raises(ServiceError) as error:
        find(server)
    assert not isinstance(error.value, AwayError)


def test_a_server_without_the_model_ends_the_worker(server: FakeServer) -> None:
    with pytest.raises(InputError):
        identify(Address(url=server.url), named="another", served=None)


def test_a_server_that_is_not_there_is_waited_for(server: FakeServer) -> None:
    server.stop_listening()
    with pytest.raises(AwayError):
        find(server)
    server.listen_again()
    assert find(server) == "served"


@pytest.mark.parametrize("name", ["hang", "500", "503", "dropped"])
def test_a_server_that_does_not_answer_a_plain_request_yet_is_waited_for(server: FakeServer, name: str) -> None:
    server.default = name
    with pytest.raises(AwayError):
        find(server)


@pytest.mark.parametrize("name", ["html", "list", "half"])
def test_a_server_whose_200_is_no_answer_ends_the_worker(server: FakeServer, name: str) -> None:
    server.default = name
    with pytest.raises(ServiceError) as raised:
        find(server)
    assert not isinstance(raised.value, AwayError)


def test_a_server_that_may_answer_one_kind_of_lines_later_is_waited_for(server: FakeServer) -> None:
    """Its other paths are not there."""

    async def loading(request: Request) -> None:
        await MISBEHAVIOURS["500" if "messages" in request.body else "404"](request)

    server.behaviours["loading"] = loading
    server.default = "loading"
    with pytest.raises(AwayError):
        find(server)


@pytest.mark.parametrize(("name", "error"), [("401", ServiceError), ("400", InputError)])
def test_a_server_that_refuses_a_plain_request_ends_the_worker(
    server: FakeServer, name: str, error: type[Exception]
) -> None:
    server.default = name
    with pytest.raises(error) as raised:
        find(server)
    assert not isinstance(raised.value, AwayError)


def test_the_server_is_asked_until_it_answers_with_growing_pauses(server: FakeServer) -> None:
    pauses: list[float] = []
    reasons: list[str] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 7:
            server.gets.clear()

    server.gets["/v1/models"] = MISBEHAVIOURS["503"]
    assert wait_for(partial(find, server), AwayError("first"), show=reasons.append, sleep=sleep) == "served"
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    assert (reasons[0], len(reasons)) == ("first", 7)


def test_what_ends_the_worker_ends_the_waiting(server: FakeServer) -> None:
    server.gets["/v1/models"] = MISBEHAVIOURS["401"]
    with pytest.raises(ServiceError, match="401"):
        wait_for(partial(find, server), AwayError("first"), show=lambda reason: None, sleep=lambda seconds: None)


def test_a_waiting_worker_is_shown_and_its_batch_says_what_it_waits_for(
    maker: sessionmaker[Session], submit_valid: Callable[..., str], line: Callable[..., dict[str, object]]
) -> None:
    batch_id = submit_valid([line(0)])
    worker = WaitingWorker(worker_id="w", model="demo", sessions=maker, heartbeat_seconds=0.01)
    with maker.begin() as session:
        session.execute(text("UPDATE model SET checked_at = NULL"))
    with worker.shown():
        worker.show("the server is not there")
        with maker() as session:
            (row,) = fleet.live_workers(session)
            assert (fleet.out_reason_of(row), row.max_chunks) == ("the server is not there", 0)
            reason = unserved.waits_for(session, [session.get_one(Batch, batch_id)])[batch_id]
            assert "server" in reason
            assert "not there" not in reason, "addresses are the operator's"
            assert fleet.contexts(session) == {}
            assert fleet.live_models(session) == []
            assert session.scalar(text("SELECT checked_at FROM model")) is None, "it has not been ready"
            session.execute(text("UPDATE worker SET heartbeat_at = 'epoch'"))
            session.commit()
            while not fleet.live_workers(session):  # until its thread beats
                session.rollback()


def _reason(maker: sessionmaker[Session]) -> str | None:
    with maker() as session:
        (row,) = fleet.live_workers(session)
        return fleet.out_reason_of(row)


def test_no_heartbeat_writes_an_older_reason_after_a_newer_one(maker: sessionmaker[Session]) -> None:
    gate, is_beating = threading.Event(), threading.Event()
    worker = WaitingWorker(worker_id="w", model="demo", sessions=maker, heartbeat_seconds=0.01)
    worker.show("old")

    def hold(_: object) -> None:
        if threading.current_thread().name == "waiting":
            worker.heartbeat_seconds = 60
            is_beating.set()
            assert gate.wait(20)

    event.listen(maker.kw["bind"], "begin", hold)
    with worker.shown():
        assert is_beating.wait(20)
        showing = threading.Thread(target=worker.show, args=("new",))
        showing.start()
        showing.join(0.2)  # ends only if it does not wait for the heartbeat
        gate.set()
        showing.join()
    assert _reason(maker) == "new"


def test_a_waiting_worker_stays_in_the_fleet_after_an_unexpected_error(
    maker: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = WaitingWorker(worker_id="w", model="demo", sessions=maker, heartbeat_seconds=0.01)
    worker.show("the server is not there")
    failures = [RuntimeError("once")]
    beat = fleet.heartbeat

    def fail_once(*given: Any, **options: Any) -> fleet.Beat:
        if failures:
            raise failures.pop()
        return beat(*given, **options)

    monkeypatch.setattr(fleet, "heartbeat", fail_once)
    with worker.shown():
        while failures:
            threading.Event().wait(0.01)
        with maker.begin() as session:
            session.execute(text("UPDATE worker SET heartbeat_at = 'epoch'"))
        for _ in range(500):
            with maker() as session:
                if fleet.live_workers(session):
                    return
            threading.Event().wait(0.01)
    raise AssertionError("its thread has ended")


def test_a_waiting_worker_shows_metrics(
    server: FakeServer, database_url: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[WSGIServer] = []

    def serve(registry: CollectorRegistry, *, host: str, port: int) -> None:
        shown.append(start_http_server(0, addr="127.0.0.1", registry=registry)[0])

    def wait(*_: object, **__: object) -> None:
        assert httpx.get(f"http://127.0.0.1:{shown[0].server_port}/metrics").status_code == 200
        raise ServiceError("enough")

    monkeypatch.setattr(serving, "serve", serve)
    monkeypatch.setattr(main, "wait_for", wait)
    server.stop_listening()
    with pytest.raises(ServiceError, match="enough"):
        main.main(
            settings.model_copy(update={"database_url": database_url, "heartbeat_seconds": 60}),
            model="demo",
            options=main.RemoteOptions(url=server.url),
        )
    shown[0].shutdown()
    shown[0].server_close()


def test_a_worker_that_learns_its_model_from_the_server_has_no_row(maker: sessionmaker[Session]) -> None:
    worker = WaitingWorker(worker_id="w", model=None, sessions=maker, heartbeat_seconds=0.01)
    with worker.shown():
        worker.show("the server is not there")
    with maker() as session:
        assert fleet.live_workers(session) == []
