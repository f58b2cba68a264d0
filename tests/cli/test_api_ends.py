"""Tests of stopping `tokenmill api`: exit status 0, whatever it is doing, within its grace time."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from cli.embedded.sockets import free_port
from jobs import served_models
from jobs.accounts.keys import create_key
from jobs.accounts.tenants import create_tenant
from jobs.database import connect, sessions
from jobs.lines.endpoints import LineKind
from lab.s3_server import Mood, S3Server
from tests.forked.commands import program_of

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_processes")]

ROOT = Path(__file__).resolve().parents[2]
GUARD_SECONDS = 60
"""Far more than an end takes, and far less than the requests hang here."""
HANGS_SECONDS = "600"
WAITS_FOR_EVER = "options=-c%20lock_timeout%3D0"
NUM_WAITING = """
    SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


class ApiProcess:
    """A `tokenmill api` with a log, and its port."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / "api.log"
        with self._log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cli.main", "api", "--port", str(self.port), *arguments],
                stdout=out,
                stderr=out,
                cwd=ROOT,
                env=os.environ
                | {"TOKENMILL_STORAGE_URL": (folder / "objects").as_uri(), "PYTHONPATH": str(ROOT)}
                | {f"TOKENMILL_{name.upper()}": value for name, value in environment.items()},
            )

    def log(self) -> str:
        return self._log.read_text()

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + GUARD_SECONDS
        while not holds():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            threading.Event().wait(0.02)

    def until_it_hears_sigterm(self) -> None:
        """Wait until the command handles the signal, which it does before anything else."""
        self.until(lambda: _catches(program_of(self.process.pid), signal.SIGTERM))

    def until_it_serves(self) -> None:
        self.until(lambda: _answers(f"{self.url}/healthz"))

    def end(self, *signals: signal.Signals) -> int:
        """Send the signals one after the other, and return the exit status."""
        for each in signals:
            self.process.send_signal(each)
        return self.process.wait(GUARD_SECONDS)


def _catches(pid: int, wanted: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), 16)
    return bool(mask & (1 << (wanted - 1)))


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=GUARD_SECONDS).is_success
    except httpx.TransportError:
        return False


@contextmanager
def api(folder: Path, *arguments: str, **environment: str) -> Iterator[ApiProcess]:
    started = ApiProcess(folder, *arguments, **environment)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


@pytest.fixture
def serving(tmp_path: Path, database_url: str) -> Iterator[ApiProcess]:
    with api(tmp_path, database_url=with_options(database_url, WAITS_FOR_EVER)) as started:
        started.until_it_serves()
        yield started


@pytest.fixture
def key(database_url: str) -> str:
    engine = connect(database_url)
    with sessions(engine).begin() as session:
        secret = create_key(session, create_tenant(session, "acme").id)[1]
    engine.dispose()
    return secret


def test_an_api_ends_with_0_however_often_it_is_asked(serving: ApiProcess) -> None:
    assert serving.end(*[signal.SIGTERM] * 20) == 0, serving.log()


def test_an_interrupt_is_still_told_as_one(serving: ApiProcess) -> None:
    assert serving.end(signal.SIGINT) == 130


def test_an_api_that_waits_to_be_started_ends_with_0(tmp_path: Path) -> None:
    with api(tmp_path, "--start-file", str(tmp_path / "never")) as starting:
        starting.until_it_hears_sigterm()
        assert starting.end(signal.SIGTERM) == 0, starting.log()


def test_an_api_that_waits_for_a_silent_postgres_ends_with_0(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/none?connect_timeout={HANGS_SECONDS}"
        with api(tmp_path, database_url=url) as starting:
            silent.settimeout(GUARD_SECONDS)
            asking, _ = silent.accept()
            with asking:
                assert starting.end(signal.SIGTERM) == 0, starting.log()


def test_a_failed_start_is_no_end_that_was_asked_for(tmp_path: Path) -> None:
    with api(tmp_path, database_url="mysql://nowhere") as failing:
        assert failing.process.wait(GUARD_SECONDS) == 2


def test_open_requests_and_idle_connections_do_not_keep_an_api_beyond_its_grace(serving: ApiProcess, key: str) -> None:
    head = f"POST /v1/files HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key}\r\ncontent-length: 1000\r\n"
    head += "content-type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
    with ExitStack() as stack:
        idle = stack.enter_context(httpx.Client(base_url=serving.url))
        assert idle.get("/healthz").is_success
        uploading = stack.enter_context(closing(socket.create_connection(("127.0.0.1", serving.port))))
        uploading.sendall(head.encode())
        followed = stack.enter_context(httpx.Client(base_url=serving.url, headers=with_key(key)))
        assert followed.get("/v1/batches").is_success  # by now the upload is being read
        assert serving.end(signal.SIGTERM, signal.SIGTERM) == 0, serving.log()


def test_a_request_that_a_silent_store_keeps_does_not_keep_an_api_beyond_its_grace(
    tmp_path: Path, database_url: str, key: str, s3: S3Server
) -> None:
    with api(
        tmp_path,
        database_url=database_url,
        storage_url=s3.url,
        storage_timeout_seconds=HANGS_SECONDS,
        storage_retries="1",
    ) as serving:
        serving.until_it_serves()
        s3.trouble(Mood.HANG)
        sending = threading.Thread(target=_upload, args=(serving, key))
        sending.start()
        try:
            serving.until(lambda: any(method in ("PUT", "POST") for method, _ in s3.requests))
            assert serving.end(signal.SIGTERM) == 0, serving.log()
        finally:
            s3.recover()
            sending.join()


def _upload(serving: ApiProcess, key: str) -> None:
    try:
        upload(serving, key, b"0123456789")
    except (httpx.TransportError, httpx.HTTPStatusError):
        return  # it has ended, and uvicorn may have answered 500 for aborted requests


@pytest.fixture
def batch_id(serving: ApiProcess, key: str, database_url: str) -> str:
    """A batch that is never validated."""
    engine = connect(database_url)
    with sessions(engine).begin() as session:
        served_models.put_model(session, "demo", "/models/demo")
        served_models.note_kind(session, "demo", LineKind.GENERATE)
    engine.dispose()
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    uploaded = upload(serving, key, json.dumps(line).encode())
    wanted = {"input_file_id": uploaded["id"], "endpoint": line["url"], "completion_window": "24h"}
    made = httpx.post(f"{serving.url}/v1/batches", headers=with_key(key), json=wanted, timeout=GUARD_SECONDS)
    return str(made.raise_for_status().json()["id"])


def upload(serving: ApiProcess, key: str, content: bytes) -> Any:
    files = {"file": ("a.jsonl", content)}
    with httpx.Client(base_url=serving.url, headers=with_key(key), timeout=None) as http:
        return http.post("/v1/files", files=files, data={"purpose": "batch"}).raise_for_status().json()


def with_key(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def with_options(url: str, options: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{options}"


def test_a_postgres_that_hangs_does_not_keep_an_api_beyond_its_grace(
    serving: ApiProcess, key: str, batch_id: str, database_url: str
) -> None:
    with ExitStack() as stack:
        locking = stack.enter_context(psycopg.connect(database_url))
        following = stack.enter_context(closing(socket.create_connection(("127.0.0.1", serving.port))))
        following.sendall(request(f"/v1/batches/{batch_id}/events", key))
        assert following.recv(1)  # its API now polls the batch once a second
        locking.execute("LOCK TABLE batch")
        asking = stack.enter_context(closing(socket.create_connection(("127.0.0.1", serving.port))))
        asking.sendall(request("/v1/batches", key))
        looking = stack.enter_context(psycopg.connect(database_url, autocommit=True))
        serving.until(lambda: looking.execute(NUM_WAITING).fetchone() == (2,))  # the poll and the request
        assert serving.end(signal.SIGTERM) == 0, serving.log()


def request(path: str, key: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key}\r\n\r\n".encode()
