"""Tests of the waits of chaos: patient with what is away, and never endless."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import httpx
import psycopg
import pytest

from lab.chaos.patience import MOST_SECONDS, OverdueError, PatientClient, RefusedError, patiently, until_over


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """A clock that pauses move on, and nothing else does."""
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "sleep", pause)
    return lambda: now[0]


def client(clock: Callable[[], float], answers: Iterator[httpx.Response]) -> PatientClient:
    transport = httpx.MockTransport(lambda _: next(answers))
    return PatientClient("http://stack/v1", "key", clock=clock, transport=transport)


def test_a_statement_that_postgres_refuses_is_asked_once(clock: Callable[[], float]) -> None:
    def ask() -> None:
        raise psycopg.errors.UndefinedTable

    with pytest.raises(psycopg.errors.UndefinedTable):
        patiently(ask, clock=clock)
    assert clock() == 0.0


def test_a_postgres_that_is_away_is_asked_until_it_answers(clock: Callable[[], float]) -> None:
    def ask() -> float:
        if clock() < MOST_SECONDS / 2:
            raise psycopg.OperationalError
        return clock()

    assert patiently(ask, clock=clock) == MOST_SECONDS / 2


def test_a_postgres_that_stays_away_ends_the_wait_and_is_named(clock: Callable[[], float]) -> None:
    def ask() -> None:
        raise psycopg.OperationalError("no route")

    with pytest.raises(OverdueError, match=r"Postgres.*no route"):
        patiently(ask, clock=clock)


def test_what_does_not_end_is_named_with_what_it_last_was(clock: Callable[[], float]) -> None:
    with pytest.raises(OverdueError, match=r"flow-7.*running"):
        until_over(lambda: "running", lambda state: state == "completed", "flow-7", clock=clock)
    assert MOST_SECONDS <= clock() <= MOST_SECONDS + 1


def test_a_call_that_is_never_answered_is_named_with_its_last_answer(clock: Callable[[], float]) -> None:
    away = client(clock, iter(lambda: httpx.Response(503, text="Postgres is away"), None))
    with pytest.raises(OverdueError, match=r"GET /runs/run-1.*503: Postgres is away"):
        away.call("GET", "/runs/run-1")


def test_a_call_is_repeated_until_it_is_answered_or_refused(clock: Callable[[], float]) -> None:
    answers = iter([httpx.Response(503), httpx.Response(200, json={"status": "queued"}), httpx.Response(404)])
    calls = client(clock, answers)
    assert calls.call("GET", "/runs/run-1") == {"status": "queued"}
    with pytest.raises(RefusedError):
        calls.call("GET", "/runs/run-1")
