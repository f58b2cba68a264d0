"""Tests of `tokenmill batch watch`: its messages about a waiting batch, and what Ctrl-C does not end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import APIConnectionError, APIStatusError, APITimeoutError, OpenAI

from cli.watching.patience import Patience, ask_patiently
from cli.watching.watch import watch_batch
from jobs.errors import InputError, ServiceError
from tests.cli.service import Service, clean_environment, completed, run


@pytest.mark.usefixtures("quick_processes")
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
        f"{batch_id} continues. Watch it again: tokenmill batch watch {batch_id}",
        f"Cancel it: tokenmill batch cancel {batch_id}",
    ]
    assert (process.returncode, printed) == (130, "")
    assert service.run("batch", "show", batch_id).stdout.splitlines()[0].split() == ["status", "in_progress"]


@contextmanager
def noted_requests(service: Service, answered: Callable[[str], None]) -> Iterator[tuple[OpenAI, list[str]]]:
    """Yield a client, and the paths of its requests; `answered` is called with each before its answer is read."""
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


ABSENT = {"TOKENMILL_BASE_URL": "http://127.0.0.1:1/v1", "TOKENMILL_API_KEY": "tm-none"}
RUNNING = {"id": "batch_1", "status": "in_progress", "created_at": 7}


class Breaking(httpx2.SyncByteStream):
    """A stream that breaks in the middle of an event."""

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
    monkeypatch.setattr("cli.watching.watch._POLL_SECONDS", 0.0)
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


REQUEST: Any = httpx2.Request("GET", "http://host/v1/batches/batch_1")


def lost() -> Exception:
    error = APIConnectionError(request=REQUEST)
    error.__cause__ = OSError("Network is unreachable")
    return error


def refused(status: int) -> Exception:
    return APIStatusError("no", response=httpx2.Response(status, request=REQUEST), body=None)


@dataclass(slots=True)
class AwayServer:
    """A client of a server that fails several times with an error, and a clock that only sleeping advances."""

    errors: Iterator[Exception]
    base_url: str = "http://host/v1/"
    now: float = 0.0
    looks: list[float] = field(default_factory=list)

    def look(self) -> str:
        self.looks.append(self.now)
        if (error := next(self.errors, None)) is not None:
            raise error
        return "answer"

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def ask(self, **patience: Any) -> str:
        client: Any = self
        given = Patience(monotonic=lambda: self.now, sleep=self.sleep, **patience)
        return ask_patiently(client, self.look, patience=given)


@pytest.mark.parametrize("make", [lost, lambda: APITimeoutError(REQUEST), lambda: refused(500), lambda: refused(503)])
def test_a_server_that_goes_away_for_a_while_is_waited_for(
    make: Callable[[], Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    server = AwayServer(make() for _ in range(5))
    assert server.ask() == "answer"
    said = capsys.readouterr().err.splitlines()
    assert ["up to 1h" in said[0], "answers again" in said[1], len(said)] == [True, True, 2]


def test_a_server_that_refuses_is_not_waited_for() -> None:
    server = AwayServer(iter([refused(404)]))
    with pytest.raises(APIStatusError):
        server.ask()
    assert server.looks == [0.0]


def test_a_server_that_stays_away_is_given_up_with_what_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    server = AwayServer(lost() for _ in count())
    with pytest.raises(ServiceError, match=r"for 1h now\. batch_1 goes on\.$"):
        server.ask(goes_on="batch_1 goes on.")
    assert server.now == pytest.approx(3600, abs=1)
    assert len(capsys.readouterr().err.splitlines()) == 6, "every ten minutes"
    with pytest.raises(ServiceError, match="for 30m now"):
        AwayServer(lost() for _ in count()).ask(most=timedelta(minutes=30))


def test_a_batch_whose_server_stays_away_goes_on_and_its_watcher_says_how_to_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = partial(next, iter((0.0, 0.0, 61.0)))
    monkeypatch.setattr("cli.batches.following.Patience", partial(Patience, monotonic=clock, sleep=lambda _: None))
    with pytest.raises(ServiceError, match=r"batch_1 continues on the server\. .*: tokenmill batch watch batch_1$"):
        run("batch", "watch", "batch_1", "--wait-for-server", "1m", **ABSENT)


@pytest.mark.parametrize(
    "given",
    [
        ["batch", "watch", "batch_1", "--wait-for-server", "soon"],
        ["batch", "create", "in.jsonl", "--wait", "--wait-for-server", "0m"],
        ["batch", "create", "in.jsonl", "--wait-for-server", "1h"],
    ],
)
def test_a_patience_that_cannot_be_is_refused_by_its_option(given: list[str]) -> None:
    with pytest.raises(InputError, match="--wait-for-server"):
        run(*given, **ABSENT)
