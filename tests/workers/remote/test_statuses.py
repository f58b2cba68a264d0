"""Tests of HTTP statuses, each engine's words for a context that is too long, and Retry-After."""

from __future__ import annotations

from datetime import UTC, datetime

import orjson
import pytest

from workers.remote.statuses import error_message, retry_after, verdict_of_status
from workers.remote.verdicts import Busy, Denied, Refused, Spoilt

NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)

TOO_LONG = [
    "This model's maximum context length is 512 tokens. However, your request has 600 input tokens.",  # vLLM
    "The input (600 tokens) is longer than the model's context length (512 tokens).",  # SGLang
    "the request exceeds the available context size. try increasing it",  # llama-server
    "Requested tokens (600) exceed context window of 512",  # llama-cpp-python
    "The number of tokens to keep from the initial prompt is greater than the context length",  # LM Studio
    "prompt is too long: 600 tokens > 512 maximum",  # Anthropic
    "`inputs` tokens + `max_new_tokens` must be <= 512",  # TGI
]


@pytest.mark.parametrize("words", TOO_LONG)
def test_a_context_that_is_too_long_has_one_code_whatever_an_engine_calls_it(words: str) -> None:
    verdict = verdict_of_status(400, {}, orjson.dumps({"error": {"message": words}}), now=NOW)
    assert isinstance(verdict, Refused)
    assert verdict.code == "context_length_exceeded"
    assert words in verdict.message


def test_other_refusals_keep_the_server_s_words() -> None:
    verdict = verdict_of_status(422, {}, b'{"detail": [{"msg": "no such field"}]}', now=NOW)
    assert isinstance(verdict, Refused)
    assert (verdict.status_code, verdict.code) == (400, "refused_by_engine")
    assert "no such field" in verdict.message


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, Denied),
        (404, Denied),
        (307, Denied),
        (429, Busy),
        (503, Busy),
        (529, Busy),
        (500, Spoilt),
        (599, Spoilt),
        (204, Spoilt),
    ],
)
def test_each_status_has_one_meaning(status: int, kind: type) -> None:
    assert isinstance(verdict_of_status(status, {}, b"", now=NOW), kind)


@pytest.mark.parametrize(
    ("status", "may"), [(408, True), (502, True), (504, True), (429, False), (503, False), (529, False)]
)
def test_a_gateway_that_is_late_may_have_computed_an_answer(status: int, *, may: bool) -> None:
    verdict = verdict_of_status(status, {}, b"", now=NOW)
    assert isinstance(verdict, Busy)
    assert verdict.may_have_computed == may


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        ("0.5", 0.5),
        ("-5", None),
        ("0", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("Sat, 28 Nov 2026 12:00:30 GMT", 30.0),
        ("Sat, 28 Nov 2026 11:00:00 GMT", None),
    ],
)
def test_retry_after_is_a_number_or_a_date_ahead(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, now=NOW) == seconds


def test_a_page_is_not_quoted_and_a_long_message_is_cut() -> None:
    assert "html" not in error_message(b"<html>secret</html>")
    assert len(error_message(orjson.dumps({"error": "x" * 9999}))) < 600
