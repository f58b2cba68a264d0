"""Tests of counting finished lines as they pass."""

from __future__ import annotations

import json
from typing import Any

from cli.line_tally import LineTally, by_code, truncated


def line(status_code: int | None, *, error: dict[str, str] | None = None, body: dict[str, Any] | None = None) -> bytes:
    response = None if status_code is None else {"status_code": status_code, "body": body or {}}
    return json.dumps({"custom_id": "a", "response": response, "error": error}).encode()


def test_answers_failures_and_cut_answers_are_told_apart() -> None:
    choices = [{"finish_reason": "stop"}, {"finish_reason": "length"}]
    refused = {"error": {"code": "invalid_value", "message": "no"}}
    lines = [
        line(200), line(200, body={"choices": choices}), line(400, body=refused), line(500),
        line(None, error={"code": "batch_expired", "message": "late"}),
    ]  # fmt: skip
    tally = LineTally()
    pages = [b"\n".join(lines[:2]) + b"\n", b"\n".join(lines[2:]) + b"\n", b"no result\n"]
    assert list(tally.passing(pages)) == pages
    assert (tally.num_completed, tally.num_truncated, tally.num_failed) == (2, 1, 3)
    assert tally.codes == {"invalid_value": 1, "500": 1, "batch_expired": 1}


def test_what_is_json_and_no_result_counts_as_nothing() -> None:
    tally = LineTally()
    for other in (b"[1]", b"null", b"3", b'"a"', b"{}", b'{"response": [1]}', b'{"error": "late"}'):
        tally.add(other)
    assert (tally.num_completed, tally.num_truncated, tally.num_failed) == (0, 0, 0)
    for odd in (b'{"response": {"body": [1]}}', b'{"response": {"body": {"choices": [1, null]}}}'):
        tally.add(odd)
    assert (tally.num_completed, tally.num_truncated) == (2, 0)


def test_codes_are_shown_most_frequent_first() -> None:
    assert by_code({"b": 1, "a": 1, "c": 1200}) == "c 1,200, a 1, b 1"


def test_nothing_is_said_of_answers_that_were_not_cut() -> None:
    assert truncated(0) == ""
    assert truncated(1).startswith("1 answer was truncated")
