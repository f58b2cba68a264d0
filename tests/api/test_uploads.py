"""Tests of uploads at their limits: too large, aborted, refused early, and large enough to measure memory."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import psutil
import pytest
from openai import OpenAI
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from jobs.tables import File

MIB = 1024 * 1024
LIMIT = 3 * MIB


@pytest.fixture(scope="module")
def small(deploy: Callable[..., Any]) -> Any:
    """A deployment that allows files of 3 MiB."""
    return deploy(max_file_bytes=LIMIT)


@pytest.fixture
def small_client(small: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{small.url}/v1", api_key=small.new_key(), max_retries=0) as client:
        yield client


def num_files(deployment: Any) -> int:
    with Session(deployment.engine) as session:
        return session.scalar(select(func.count()).select_from(File)) or 0


def test_a_file_may_have_exactly_the_allowed_size(small_client: OpenAI) -> None:
    assert small_client.files.create(file=("in.jsonl", b"x" * LIMIT), purpose="batch").bytes == LIMIT


@pytest.mark.parametrize("size", [LIMIT + 1, 40 * LIMIT])
def test_a_file_over_the_limit_is_a_413_that_leaves_nothing(small: Any, small_client: OpenAI, size: int) -> None:
    before, rows = small.object_names(), num_files(small)
    with pytest.raises(openai.APIStatusError, match=f"{LIMIT:,}") as caught:
        small_client.files.create(file=("in.jsonl", b"x" * size), purpose="batch")
    assert (caught.value.status_code, caught.value.code) == (413, "file_too_large")
    assert (small.object_names(), num_files(small)) == (before, rows)


def test_a_file_of_unannounced_size_is_stopped_as_its_bytes_arrive(small: Any) -> None:
    def body() -> Iterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(16):
            yield b"x" * MIB
        yield b"\r\n--x--\r\n"

    before = small.object_names()
    answer = httpx.post(
        f"{small.url}/v1/files",
        content=body(),
        headers={"authorization": f"Bearer {small.new_key()}", "content-type": "multipart/form-data; boundary=x"},
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "file_too_large")
    assert small.object_names() == before


def test_a_wrong_purpose_is_refused_before_the_file_is_sent(small: Any) -> None:
    address = urlsplit(small.url)
    form = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nvision\r\n--x\r\n'
    with socket.create_connection((address.hostname, address.port), timeout=120) as connection:
        connection.sendall(request_head(small.new_key(), content_length=LIMIT) + form + b"x" * MIB)
        assert b" 400 Bad Request" in connection.recv(65536)


@pytest.mark.parametrize("sent", [100, 2 * MIB])
def test_a_client_that_goes_away_leaves_no_object_and_no_row(
    small: Any, sent: int, caplog: pytest.LogCaptureFixture
) -> None:
    before, rows = small.object_names(), num_files(small)
    address = urlsplit(small.url)
    form = (
        b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    )
    gone = broken_off(small)
    with socket.create_connection((address.hostname, address.port), timeout=120) as connection:
        connection.sendall(request_head(small.new_key(), content_length=LIMIT) + form + b"x" * sent)
    deadline = time.monotonic() + 120
    while broken_off(small) == gone or small.object_names() != before:
        assert time.monotonic() < deadline, small.object_names() - before
        time.sleep(0.01)
    assert num_files(small) == rows
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def request_head(key: str, *, content_length: int) -> bytes:
    return (
        f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {content_length}\r\n\r\n"
    ).encode()


def broken_off(deployment: Any) -> str:
    """The server's own count of uploads whose client disconnected before an answer."""
    metrics = httpx.get(f"{deployment.url}/metrics").text
    wanted = 'tokenmill_http_requests_total{method="POST",route="/v1/files",status="499"}'
    return next((line for line in metrics.splitlines() if line.startswith(wanted)), "")


SERVE = """
import socket, sys, uvicorn
from api.app import create_app
from jobs.settings import load_settings
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(create_app(load_settings()), log_level="warning")).run(sockets=[listener])
"""


def test_a_large_upload_takes_little_memory(deployment: Any, input_lines: Callable[..., bytes]) -> None:
    """128 MiB of input lines through a server process whose resident memory is sampled meanwhile."""
    settings = deployment.settings
    environment = {
        **os.environ,
        "TOKENMILL_DATABASE_URL": settings.database_url,
        "TOKENMILL_STORAGE_URL": settings.storage_url,
    }
    piece = input_lines(8000)[:MIB]
    with subprocess.Popen([sys.executable, "-c", SERVE], env=environment, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{int(server.stdout.readline())}"
            assert httpx.get(f"{url}/readyz").status_code == 200
            watch = MemoryWatch(server.pid)
            answer = httpx.post(
                f"{url}/v1/files",
                content=form_of(piece, num_pieces=128),
                headers={
                    "authorization": f"Bearer {deployment.new_key()}",
                    "content-type": "multipart/form-data; boundary=x",
                },
                timeout=120,
            )
            assert (answer.status_code, answer.json()["bytes"]) == (200, 128 * len(piece))
            watch.stop()
            assert watch.peak < 300 * MIB
            assert watch.peak - watch.idle < 64 * MIB
        finally:
            server.terminate()


def form_of(piece: bytes, *, num_pieces: int) -> Iterator[bytes]:
    yield b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    for _ in range(num_pieces):
        yield piece
    yield b"\r\n--x--\r\n"


class MemoryWatch:
    """Samples a process's resident memory every 10 ms until stopped; `idle` is the first sample. Bytes."""

    def __init__(self, pid: int) -> None:
        self._process, self._is_over = psutil.Process(pid), threading.Event()
        self.idle = self.peak = self._process.memory_info().rss
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._is_over.wait(0.01):
            self.peak = max(self.peak, self._process.memory_info().rss)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
