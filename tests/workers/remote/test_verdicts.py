"""What a server did and what became of the line, one row each; the lines beside it are answered."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.workers.remote.builders import QUICK
from tests.workers.remote.desk import Desk, wait_until
from tests.workers.remote.fake_server import FakeServer
from tests.workers.remote.misbehaviours import MISBEHAVIOURS
from workers.remote.calls import outcomes
from workers.remote.calls.caller import MAX_ATTEMPTS, Caller
from workers.remote.calls.pace import Pace
from workers.remote.verdicts import Answered, Away, Refused, Spoilt, Unloaded

FAILS = [
    *(
        "html",
        "nothing",
        "list",
        "half",
        "utf8",
        "gzip",
        "hang",
        "stall",
        "endless",
        "gigabyte",
        "slow",
        "cut",
        "dropped",
    ),
    *("other-line", "other-model", "few-choices", "many-choices", "misnumbered", "no-message", "no-text", "bad-call"),
    *("bad-calls", "unknown-end", "no-end", "nan", "500"),
]
"""The line is asked again, and then fails alone."""
REFUSED = {"400": "refused_by_engine", "422": "refused_by_engine", "error-in-200": "refused_by_engine"}
"""The line has the server's error as its result."""
UNCOUNTED = ["no-usage", "negative-usage", "huge-usage", "huge-prompt", "float-usage"]
"""The line is answered; the server's counts are not used."""
AWAY = ["401", "404", "redirect"]
"""The line is given back where the server denies its check request, too; otherwise it is refused."""
LATER = [
    "401",
    "429",
    "429-soon",
    "429-negative",
    "503",
    "504",
    "busy-in-200",
    "html",
    "500",
    "cut",
    "dropped",
    "other-line",
    "nan",
]
"""The line is answered once the server behaves."""


def test_every_misbehaviour_has_a_row() -> None:
    rows = {*FAILS, *REFUSED, *UNCOUNTED, *AWAY, *LATER, "429-year", "null-logprob", "well-soon"}
    assert rows == set(MISBEHAVIOURS)


@pytest.mark.parametrize("name", FAILS)
def test_an_unusable_answer_fails_its_line_alone(name: str, desk: Desk, server: FakeServer) -> None:
    line, others = f"misbehave {name}", [f"Hello {number}" for number in range(3)]
    desk.ask(line, *others)
    desk.wait(4)
    assert isinstance(desk.outcomes[line].verdict, Spoilt)
    assert all(isinstance(desk.outcomes[other].verdict, Answered) for other in others)
    assert server.num_asked[line] == MAX_ATTEMPTS
    assert [server.num_asked[other] for other in others] == [1, 1, 1]


@pytest.mark.parametrize(("name", "code"), REFUSED.items())
def test_a_refusal_is_the_line_s_result(name: str, code: str, desk: Desk, server: FakeServer) -> None:
    verdict = desk.verdict_of(f"misbehave {name}")
    assert isinstance(verdict, Refused)
    assert (verdict.status_code, verdict.code) == (400, code)
    assert server.num_asked[f"misbehave {name}"] == 1


@pytest.mark.parametrize("name", UNCOUNTED)
def test_an_answer_whose_counts_cannot_be_true_is_kept_without_them(name: str, desk: Desk) -> None:
    verdict = desk.verdict_of(f"misbehave {name}")
    assert isinstance(verdict, Answered)
    assert verdict.counts is None


@pytest.mark.parametrize("name", AWAY)
def test_a_server_that_answers_no_line_fails_none(name: str, desk: Desk, server: FakeServer) -> None:
    server.behaviours["check"] = server.behaviours[name]
    desk.caller._check.body["messages"] = [{"role": "user", "content": "misbehave check"}]
    verdict = desk.verdict_of(f"misbehave {name}")
    assert isinstance(verdict, Away)
    assert desk.caller.away_reason is not None
    server.behaviours["check"] = server.behaviours["no-usage"]
    wait_until(lambda: desk.caller.away_reason is None)


@pytest.mark.parametrize("name", AWAY)
def test_a_line_that_is_denied_alone_is_refused_and_stops_no_other(name: str, desk: Desk, server: FakeServer) -> None:
    line = f"misbehave {name}"
    verdict = desk.verdict_of(line)
    assert isinstance(verdict, Refused)
    assert verdict.code == "denied_by_engine"
    assert server.num_asked[line] == MAX_ATTEMPTS
    assert server.num_asked["Say ok."] == MAX_ATTEMPTS
    assert desk.caller._presence.away is None


def test_a_line_of_an_adapter_that_its_server_has_lost_is_no_error(desk: Desk, server: FakeServer) -> None:
    desk.ask("misbehave 404", adapter="sql-lora")
    desk.wait(1)
    assert desk.outcomes["misbehave 404"].verdict == Unloaded(adapter="sql-lora")
    assert server.num_asked["misbehave 404"] == 1


def test_lines_that_are_denied_together_share_a_check_request(desk: Desk, server: FakeServer) -> None:
    async def gather(request: Any) -> None:
        while server.num_computing < 5 and server.num_asked[request.text] == 1:
            await asyncio.sleep(0.01)
        await server.behaviours["401"](request)

    server.behaviours["gather"] = gather
    desk.ask(*(f"misbehave gather 1 line {number}" for number in range(5)))
    desk.wait(5)
    assert all(isinstance(outcome.verdict, Answered) for outcome in desk.outcomes.values())
    assert server.num_asked["Say ok."] < 5


@pytest.mark.parametrize("name", LATER)
def test_a_line_is_answered_once_the_server_behaves(name: str, desk: Desk, server: FakeServer) -> None:
    line = f"misbehave {name} 2"
    assert isinstance(desk.verdict_of(line), Answered)
    assert server.num_asked[line] == 3


def test_log_probabilities_that_are_missing_spoil_an_answer_only_where_they_are_asked_for(desk: Desk) -> None:
    desk.ask("misbehave null-logprob 9")
    desk.wait(1)
    assert isinstance(desk.outcomes["misbehave null-logprob 9"].verdict, Answered)
    desk.ask("misbehave null-logprob", num_logprobs=0)
    desk.wait(2)
    assert isinstance(desk.outcomes["misbehave null-logprob"].verdict, Spoilt)


def test_a_sick_server_fails_no_line(desk: Desk, server: FakeServer) -> None:
    server.is_sick = True
    assert isinstance(desk.verdict_of("Hello"), Away)
    server.is_sick = False
    wait_until(lambda: desk.caller.away_reason is None)
    desk.ask("Hello again")
    desk.wait(2)
    assert isinstance(desk.outcomes["Hello again"].verdict, Answered)


def _is_asked(server: FakeServer, num: int) -> bool:
    return server.num_asked["misbehave crash"] == num


@pytest.mark.parametrize("patience", [replace(QUICK, away_seconds=20.0)])
def test_failures_of_the_server_are_no_attempts_of_a_line_that_waited_while_others_were_answered(
    desk: Desk, server: FakeServer
) -> None:
    async def fail_with_the_server(request: Any) -> None:
        server.is_sick = server.num_asked[request.text] <= MAX_ATTEMPTS
        await server.behaviours["500" if server.is_sick else "no-usage"](request)

    server.behaviours["crash"] = fail_with_the_server
    desk.ask("misbehave crash", "Hello")
    server.wait_for(lambda: server.num_asked["misbehave crash"] == 1)
    for number in range(MAX_ATTEMPTS):
        wait_until(lambda: desk.caller._presence.away is not None)
        server.is_sick = False
        server.wait_for(partial(_is_asked, server, number + 2))
    desk.wait(2)
    assert all(isinstance(outcome.verdict, Answered) for outcome in desk.outcomes.values())


def test_a_server_that_is_gone_for_a_moment_costs_no_line(desk: Desk, server: FakeServer) -> None:
    server.stop_listening()
    desk.ask(*(f"Hello {number}" for number in range(3)))
    wait_until(lambda: desk.caller._presence.away is not None)
    server.listen_again()
    desk.wait(3)
    assert all(isinstance(outcome.verdict, Answered) for outcome in desk.outcomes.values())


def test_a_pause_of_a_year_gives_the_line_back_and_the_server_is_asked_in_the_line_s_time(desk: Desk) -> None:
    verdict = desk.verdict_of("misbehave 429-year", seconds_left=4.0)
    assert isinstance(verdict, Away)
    assert "asks for 2 s" in verdict.reason, "half of the time that is left"
    assert desk.caller.away_reason is not None


def test_a_server_that_is_always_busy_for_one_line_fails_it(
    desk: Desk, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "MAX_BUSY", 2)
    desk.ask("misbehave 503")
    for number in range(12):
        desk.ask(f"Hello {number}")
        desk.wait(number + 1)
    wait_until(lambda: "misbehave 503" in desk.outcomes)
    assert isinstance(desk.outcomes["misbehave 503"].verdict, Spoilt)


def test_what_was_paid_for_answers_that_were_thrown_away_is_told(desk: Desk) -> None:
    line = "misbehave other-model 2"
    desk.ask(line)
    desk.wait(1)
    outcome = desk.outcomes[line]
    assert [counts.completion_tokens for counts in outcome.wasted] == [2, 2]


@pytest.mark.parametrize("num_seats", [1])
def test_lines_that_share_a_prefix_are_asked_one_after_the_other(desk: Desk, server: FakeServer) -> None:
    gate = threading.Event()

    async def wait(request: Any) -> None:
        while not gate.is_set():
            await asyncio.sleep(0.01)
        await server.behaviours["no-usage"](request)

    server.behaviours["wait"] = wait
    desk.ask("misbehave wait")
    server.wait_for(lambda: server.num_asked["misbehave wait"] == 1)
    desk.ask("Preface. 1", "Another. 2", "Preface. 3", "Another. 4")
    wait_until(lambda: desk.caller.num_waiting == 4)
    gate.set()
    desk.wait(5)
    assert server.order[1:] == ["Another. 2", "Another. 4", "Preface. 1", "Preface. 3"]


def test_cancelled_calls_close_their_connections(server: FakeServer, desk: Desk) -> None:
    desk.ask("misbehave hang 5")
    server.wait_for(lambda: server.num_computing == 1)
    desk.caller.cancel(["misbehave hang 5"])
    server.wait_for(lambda: server.num_computing == 0)
    assert desk.outcomes == {}


def test_proxies_of_the_environment_are_ignored(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    other = Caller(desk.caller._address, Pace(start=1, most=1), desk.caller._check, patience=QUICK)
    other.start()
    desk.caller, kept = other, desk.caller
    assert isinstance(desk.verdict_of("Hello"), Answered)
    other.close()
    desk.caller = kept
