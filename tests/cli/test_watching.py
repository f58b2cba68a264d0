"""`tokenmill batch watch` as a user leaves it: what it says of a batch that waits, and what Ctrl-C does not end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import httpx2
import pytest
from openai import APIConnectionError, OpenAI

from cli.watch import watch_batch
from tests.cli.service import Service, clean_environment, completed


def test_a_batch_that_waits_says_for_what_and_goes_on_after_ctrl_c(service: Service, batch_file: Path) -> None:
    batch_id = service.run("batch", "create", batch_file).stdout.strip()
    service.validate(batch_id)
    with subprocess.Popen(
        [sys.executable, "-m", "cli.main", "batch", "watch", batch_id],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(**service.variables),
    ) as process:  # fmt: skip
        assert process.stderr is not None
        first = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=60)
    assert first.startswith("No running worker serves the model 'tiny'.")
    assert said.splitlines()[-2:] == [
        f"{batch_id} goes on. Watch it again: tokenmill batch watch {batch_id}",
        f"Cancel it: tokenmill batch cancel {batch_id}",
    ]
    assert (process.returncode, printed) == (130, "")
    assert service.run("batch", "show", batch_id).stdout.splitlines()[0].split() == ["status", "in_progress"]


@contextmanager
def noted_requests(service: Service, answered: Callable[[str], None]) -> Iterator[tuple[OpenAI, list[str]]]:
    """Yield a client, and the paths that it has asked for; `answered` hears of each before its answer is read."""
    paths: list[str] = []

    def note(answer: httpx2.Response) -> None:
        paths.append(answer.request.url.path)
        answered(paths[-1])

    hooks: Any = {"response": [note]}
    with (
        httpx2.Client(event_hooks=hooks, timeout=60) as http,
        OpenAI(base_url=service.base_url, api_key=service.api_key, http_client=http, max_retries=0) as client,
    ):
        yield client, paths


def test_the_server_tells_how_a_batch_goes_on_and_is_not_asked_again_and_again(
    service: Service, batch_file: Path
) -> None:
    batch_id = service.run("batch", "create", batch_file).stdout.strip()
    service.validate(batch_id)

    def work(path: str) -> None:
        if path.endswith("/events"):
            service.answer(batch_id, [completed(number) for number in range(3)])
            service.finish(batch_id)

    with noted_requests(service, work) as (client, paths):
        batch = watch_batch(client, batch_id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 3)
    assert batch.cost == "0.00", "fields of ours, too"
    assert paths == [f"/v1/batches/{batch_id}", f"/v1/batches/{batch_id}/events"]


RUNNING = {"id": "batch_1", "status": "in_progress", "created_at": 7}


class Breaking(httpx2.SyncByteStream):
    """An event that ends in the middle of the next one."""

    def __iter__(self) -> Iterator[bytes]:
        yield b"retry: 2000\n\n: nothing\n\nid: 1\nevent: batch\ndata: " + json.dumps(RUNNING).encode() + b"\n\ndata: {"
        raise httpx2.ReadError("connection reset")


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param(lambda: httpx2.Response(404, json={}), "events look look", id="an older server"),
        pytest.param(lambda: httpx2.Response(429, json={}), "events look look", id="too many readers"),
        pytest.param(lambda: httpx2.Response(200, json=RUNNING), "events look look", id="another server"),
        pytest.param(lambda: httpx2.Response(204), "events look look", id="nothing new"),
        pytest.param(
            lambda: httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Breaking()),
            "events look events look",
            id="a stream that breaks",
        ),
    ],
)
def test_a_server_that_does_not_tell_or_stops_is_asked(
    monkeypatch: pytest.MonkeyPatch, events: Callable[[], httpx2.Response], expected: str
) -> None:
    monkeypatch.setattr("cli.watch._POLL_SECONDS", 0.0)
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append("events" if request.url.path.endswith("/events") else "look")
        if asked[-1] == "events":
            return events()
        has_ended = asked.count("look") == 3
        return httpx2.Response(200, json=RUNNING | ({"status": "completed", "completed_at": 9} if has_ended else {}))

    with OpenAI(
        base_url="http://host/v1", api_key="k", http_client=httpx2.Client(transport=httpx2.MockTransport(answer))
    ) as client:
        assert watch_batch(client, "batch_1").status == "completed"
    assert " ".join(asked) == f"look {expected}"


def test_a_server_that_goes_away_for_a_while_is_told_once_with_the_cause(capsys: pytest.CaptureFixture[str]) -> None:
    request: Any = httpx.Request("GET", "http://host/v1")
    lost = APIConnectionError(request=request)
    lost.__cause__ = OSError("Network is unreachable")
    others = dict.fromkeys(("request_counts", "usage", "failed_at", "expired_at", "cancelled_at"))
    ended = SimpleNamespace(status="completed", created_at=7, completed_at=7, **others)
    answers: list[Any] = [lost, lost, ended]

    def retrieve(_: str) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    client: Any = SimpleNamespace(base_url="http://host/v1/", batches=SimpleNamespace(retrieve=retrieve))
    assert watch_batch(client, "batch_1") is ended
    assert capsys.readouterr().err == (
        "http://host/v1/ does not answer (Network is unreachable); trying again for 60 s\n"
    )
