"""Tests of what a line that is not sent, or is withdrawn, has cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.workers.remote.builders import QUICK
from tests.workers.remote.desk import Desk, wait_until
from tests.workers.remote.fake_server import FakeServer
from workers.remote.calls import caller as calling
from workers.remote.calls.call import Permit
from workers.remote.calls.outcomes import Outcome
from workers.remote.verdicts import Unpaid


def test_a_line_that_may_not_be_paid_is_not_sent(desk: Desk, server: FakeServer) -> None:
    desk.ask("Hello", permit=Permit(may_send=lambda: False, may_repeat=lambda: True))
    desk.wait(1)
    assert desk.outcomes["Hello"] == Outcome(verdict=Unpaid())
    assert server.num_asked["Hello"] == 0


LONG = replace(QUICK, away_seconds=60.0)
"""Lines wait for a cool-down that no test waits for."""


@pytest.mark.parametrize("patience", [LONG])
@pytest.mark.parametrize(
    ("name", "is_free"), [("429", True), ("503", True), ("401", True), ("504", False), ("html", False)]
)
def test_a_line_that_is_withdrawn_before_it_is_asked_again_costs_nothing_unless_an_answer_was_computed(
    desk: Desk, server: FakeServer, monkeypatch: pytest.MonkeyPatch, name: str, *, is_free: bool
) -> None:
    monkeypatch.setattr(calling, "_FIRST_COOL_DOWN_SECONDS", 20.0)
    _require_free(desk, server, f"misbehave {name}", num_asked=1, is_free=is_free)


@pytest.mark.parametrize("patience", [LONG])
def test_what_was_computed_costs_though_the_server_is_busy_later(
    desk: Desk, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late_and_then_busy(request: Any) -> None:
        if server.num_asked[request.text] > 1:
            monkeypatch.setattr(calling, "_FIRST_COOL_DOWN_SECONDS", 20.0)
        await server.behaviours["504" if server.num_asked[request.text] == 1 else "503"](request)

    server.behaviours["late"] = late_and_then_busy
    _require_free(desk, server, "misbehave late", num_asked=2, is_free=False)


def _require_free(desk: Desk, server: FakeServer, line: str, *, num_asked: int, is_free: bool) -> None:
    """Ask a line, withdraw it once the server has answered so often, and check whether it costs nothing."""
    desk.ask(line)
    server.wait_for(lambda: server.num_asked[line] == num_asked)
    wait_until(lambda: (desk.caller.num_waiting, desk.caller.num_running) == (1, 0))
    assert desk.caller.withdraw([line]) == frozenset([line] if is_free else [])


def test_a_line_that_waits_for_a_server_that_is_away_costs_nothing(desk: Desk, server: FakeServer) -> None:
    server.stop_listening()
    desk.ask("Hello")
    wait_until(lambda: desk.caller._presence.away is not None)
    assert desk.caller.withdraw(["Hello"]) == frozenset(["Hello"])
    server.listen_again()
