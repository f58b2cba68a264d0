"""Tests of the process that parses large bodies: it answers, refuses, dies, hangs, and is restarted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from api.batches.creating import CreateBatchBody
from api.parsing.parser import BodyParser
from jobs.errors import InputError, ServiceError, TooLargeError

WANTED = {"endpoint": "/v1/completions", "completion_window": "24h"}


@pytest.fixture(scope="module")
def parser() -> Iterator[BodyParser]:
    parser = BodyParser()
    yield parser
    parser.close()


def parsed(parser: BodyParser, given: object) -> CreateBatchBody:
    return asyncio.run(parser.parsed(CreateBatchBody, json.dumps(given).encode(), "application/json"))


def test_requests_come_back_as_lines(parser: BodyParser) -> None:
    body = parsed(parser, WANTED | {"requests": [{"body": {"prompt": "é"}}, {"custom_id": "b"}]})
    assert body.requests == []
    assert [json.loads(line)["custom_id"] for line in body.lines] == ["request-1", "b"]
    assert "é".encode() in body.lines[0]


def test_what_is_refused_has_its_own_status_and_code(parser: BodyParser) -> None:
    with pytest.raises(TooLargeError) as many:
        parsed(parser, WANTED | {"requests": [{}] * 5001})
    assert (many.value.code, many.value.param) == ("too_many_tasks", "requests")
    with pytest.raises(InputError) as unknown:
        parsed(parser, WANTED | {"coffee": 1})
    assert (unknown.value.code, unknown.value.param) == ("unknown_parameter", "coffee")
    with pytest.raises(InputError) as broken:
        asyncio.run(parser.parsed(CreateBatchBody, b"[" * 100_000, "application/json"))
    assert broken.value.code == "invalid_json"


def test_a_process_that_was_killed_is_started_anew(parser: BodyParser) -> None:
    parsed(parser, WANTED)
    assert parser.process_id is not None
    os.kill(parser.process_id, signal.SIGKILL)
    with pytest.raises(ServiceError):
        parsed(parser, WANTED)
    assert parsed(parser, WANTED).endpoint == "/v1/completions"


@pytest.mark.parametrize("does", ["import time; time.sleep(600)", "pass", "print('no answer')"])
def test_a_process_that_hangs_or_ends_is_no_answer(does: str) -> None:
    parser = BodyParser((sys.executable, "-c", does), most_seconds=0.2)
    with pytest.raises(ServiceError):
        parsed(parser, WANTED | {"metadata": {"a": "b" * 500}})
    assert parser.process_id is None
