"""Tests of the tests' S3 server, which can answer, refuse or hang."""

from __future__ import annotations

import http.client
from contextlib import closing

import pytest

from lab.s3_server import Mood, S3Server, s3_server


def test_a_request_does_not_hang_in_a_trouble_that_ended_while_it_came() -> None:
    s3 = S3Server(backend_port=0)
    s3.trouble(Mood.HANG)
    met = s3.meet("GET", "a")
    assert met is not None
    s3.recover()
    s3.trouble(Mood.HANG)
    s3.hang(met)  # returns
    assert s3.meet("GET", "b") is not met


def ask(connection: http.client.HTTPConnection, s3: S3Server) -> bytes:
    connection.request("GET", f"/{s3.bucket}")
    return connection.getresponse().read()


def test_a_server_that_has_ended_answers_no_connection_that_was_kept() -> None:
    with s3_server() as s3:
        kept = http.client.HTTPConnection("127.0.0.1", s3.port, timeout=60)
        assert ask(kept, s3)
    with closing(kept), pytest.raises((http.client.HTTPException, ConnectionError)):
        ask(kept, s3)
