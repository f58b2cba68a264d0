"""The S3 of the tests, which answers, refuses or hangs as it is told."""

from __future__ import annotations

from benchmarks.s3_server import Mood, S3Server


def test_a_request_does_not_hang_in_a_trouble_that_ended_while_it_came() -> None:
    s3 = S3Server(backend_port=0)
    s3.trouble(Mood.HANG)
    met = s3.meet("GET", "a")
    assert met is not None
    s3.recover()
    s3.trouble(Mood.HANG)
    s3.hang(met)  # returns
    assert s3.meet("GET", "b") is not met
