"""Tests of the output of previews and runs: prompts as text, each fact about a run once, and its end."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from openai import APIConnectionError

from cli.calls import Calls
from cli.line_tally import SOME_LINES_FAILED
from features.pipelines.commands import run_commands
from features.pipelines.commands.shown import failed_rows, preview_lines, run_row
from features.pipelines.commands.watching import watch_run
from tests.cli.service import run as command


def run(status: str, *steps: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"id": "run_1", "kind": "cron", "status": status, "reason": reason, "steps": list(steps), "total_tokens": 0}


def step(name: str, *, rows: int = 12, failed: int = 0, files: int | None = None) -> dict[str, Any]:
    status = "in_progress" if files is None else "done"
    return {"name": name, "status": status, "rows": rows, "failed": failed, "files": [{}] * (files or 0)}


class Server:
    """Answers with the given states of a run in turn; an error among them is raised."""

    client = SimpleNamespace(base_url="http://server")

    def __init__(self, *states: dict[str, Any] | Exception) -> None:
        self._states = list(states)

    def post(self, path: str, body: dict[str, Any], *, key: str | None = None) -> dict[str, Any]:
        assert (path, body, key) == ("/runs", {"pipeline": "nightly"}, None)
        return self.get("/runs/run_1")

    def get(self, path: str) -> dict[str, Any]:
        assert path == "/runs/run_1"
        state = self._states.pop(0)
        if isinstance(state, Exception):
            raise state
        return state


def watched(monkeypatch: pytest.MonkeyPatch, *states: dict[str, Any] | Exception) -> dict[str, Any]:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    return watch_run(cast(Calls, Server(*states)), "run_1")


def test_a_run_is_followed_and_each_thing_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = step("fields", failed=2, files=0)
    ended = run("succeeded", fields, step("vendors", rows=1, files=1)) | {"total_tokens": 1234}
    states = [run("queued"), run("running", step("fields")), run("running", step("fields")), run("running", fields)]
    trouble = run("running", fields, reason="the store does not answer")
    assert watched(monkeypatch, *states, trouble, trouble, ended) == ended
    assert capsys.readouterr().out.splitlines() == [
        "queued: it starts in a moment, or when the pipeline's previous run has ended",
        "fields: 12 rows",
        "fields: done, 10 answered, 2 failed",
        "running: the store does not answer",
        "vendors: 1 row",
        "vendors: done, 1 answered, 0 failed, 1 file",
        "succeeded after 1,234 tokens",
    ]


def test_a_server_that_restarts_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    away = APIConnectionError(request=httpx2.Request("GET", "http://server"))
    assert watched(monkeypatch, run("running"), away, away, run("succeeded"))["status"] == "succeeded"
    printed = capsys.readouterr()
    assert printed.out == "succeeded\n"
    assert printed.err.count("does not answer") == 1


@pytest.mark.parametrize("status", ["failed", "skipped", "cancelled"])
def test_a_run_that_did_not_succeed_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: str
) -> None:
    watched(monkeypatch, run(status, reason="its store is gone"))
    assert capsys.readouterr().out == f"{status}: its store is gone\n"


def test_a_run_that_is_triggered_and_waited_for_is_json_alone_on_standard_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = run("succeeded", step("fields", failed=2, files=1))
    states = [run("queued"), run("running", step("fields")), ended]
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(run_commands, "server", lambda: nullcontext(Server(*states)))
    done = command("runs", "trigger", "nightly", "--wait", "--json")
    assert json.loads(done.stdout) == ended
    assert done.stderr.splitlines() == [
        "run_1",
        "fields: 12 rows",
        "fields: done, 10 answered, 2 failed, 1 file",
        "succeeded",
    ]
    assert done.exit_code == SOME_LINES_FAILED


def test_a_list_shows_the_rows_of_a_run_and_those_without_an_answer_in_any_step() -> None:
    found = run("succeeded", step("fields", failed=2, files=0), step("vendors", rows=3, failed=1, files=1))
    assert run_row(found, "today") == ("run_1", "cron", "today", "succeeded", 12, 3, None)
    assert failed_rows(found) == 3
    assert run_row(run("queued"), "today")[4:6] == ("", 0)


def test_a_preview_shows_prompts_as_they_read() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Receipt\n\nTotal: 3"}]
    preview = {"lines": [{"custom_id": "row-1", "body": {"messages": messages}}], "summary": "1 file."}
    assert list(preview_lines(preview)) == [
        "row-1",
        "  system     Be brief.",
        "  user       Receipt",
        "",
        "             Total: 3",
        "",
        "1 file.",
    ]
