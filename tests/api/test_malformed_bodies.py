"""Tests of malformed chunked bodies on raw sockets: the answers and the log entries."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.api.waiting import wait_until

GUARD_SECONDS = 5
CHUNKED = b"host: test\r\ntransfer-encoding: chunked\r\n"
CAUSED_BY_PEERS = ("api.middleware", "asyncio", "uvicorn.error")
BODIES = {
    "no size": b"zz\r\nab\r\n0\r\n\r\n",
    "a negative size": b"-1\r\nab\r\n0\r\n\r\n",
    "a size beyond all": b"f" * 30 + b"\r\n",
    "no line end behind a chunk": b"2\r\nabXX0\r\n\r\n",
    "an empty line for a size": b"\r\n\r\n",
    "a second chunk without a size": b"2\r\n{}\r\nzz\r\n",
    "an unending extension": b"2;" + b"e" * 100_000,
    "a trailer without a colon": b"0\r\nnothing\r\n\r\n",
    "an unending trailer": b"0\r\nx: " + b"y" * 100_000,
}


@pytest.fixture(scope="module")
def strangers_url(serve: Callable[..., str]) -> str:
    """The URL of a server whose database is unreachable."""
    return serve(database_url="postgresql://nobody@127.0.0.1:1/nothing")


def statuses(url: str, *pieces: bytes) -> list[int]:
    """Send pieces, each after an answer to the previous one; return the statuses until the connection closes."""
    address = httpx.URL(url)
    answer = b""
    with socket.create_connection((address.host, address.port or 0), timeout=GUARD_SECONDS) as connection:
        connection.sendall(pieces[0])
        try:
            for piece in pieces[1:]:
                answer += connection.recv(65536)
                connection.sendall(piece)
            while part := connection.recv(65536):
                answer += part
        except ConnectionError:  # closed before everything was sent
            pass
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", answer)]


def assert_one_line(caplog: pytest.LogCaptureFixture, url: str, *, path: str) -> None:
    """Check that a request left one line in the log, besides its regular entry."""
    wait_until(lambda: any(is_entry(record, path) for record in caplog.records))
    httpx.get(f"{url}/healthz")  # the server has finished the previous requests
    ours = [record for record in caplog.records if record.name.startswith(CAUSED_BY_PEERS)]
    others = [record for record in ours if not is_entry(record, path)]
    assert [record.name for record in others] == ["uvicorn.error"]
    assert others[0].exc_info is None
    assert len(others[0].getMessage()) < 200


def is_entry(record: logging.LogRecord, path: str) -> bool:
    return bool(getattr(record, "fields", {}).get("path") == path)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("path", ["/v1/batches", "/nowhere"])
def test_a_malformed_body_is_refused_in_one_line(
    strangers_url: str, caplog: pytest.LogCaptureFixture, path: str, body: bytes
) -> None:
    caplog.set_level(logging.INFO)
    answered = statuses(strangers_url, b"POST %s HTTP/1.1\r\n" % path.encode() + CHUNKED + b"\r\n" + body)
    assert answered in ([400], [401], [404], []), "answered before a body that came in several pieces, or reset"
    assert_one_line(caplog, strangers_url, path=path)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_malformed_body_behind_an_answer_closes_the_connection(
    strangers_url: str, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    caplog.set_level(logging.INFO)
    head = b"POST /nowhere HTTP/1.1\r\n" + CHUNKED + b"\r\n"
    assert statuses(strangers_url, head, body) == [404]
    assert_one_line(caplog, strangers_url, path="/nowhere")


def test_an_upload_whose_chunks_break_off_leaves_nothing(
    deployment: Any, stored_objects: Callable[[], set[str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    before = stored_objects()
    head = (
        b"POST /v1/files HTTP/1.1\r\nexpect: 100-continue\r\nauthorization: Bearer " + deployment.new_key().encode()
        + b"\r\ncontent-type: multipart/form-data; boundary=b\r\n" + CHUNKED + b"\r\n"
    )  # fmt: skip
    begun = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nbegun'
    assert statuses(deployment.url, head, b"%x\r\n%s\r\nzz\r\n" % (len(begun), begun)) == [100, 400]
    assert_one_line(caplog, deployment.url, path="/v1/files")
    assert stored_objects() == before
