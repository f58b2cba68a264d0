from __future__ import annotations

import json
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.lines.bodies import COMPLETION_ENDPOINT, parse_body
from jobs.lines.input_estimate import InputEstimate, InputEstimator, estimate_tokens


def estimate(content: bytes, *, piece: int = 10**9) -> InputEstimate:
    estimator = InputEstimator(default_max_tokens=100)
    for start in range(0, len(content), piece):
        estimator.feed(content[start : start + piece])
    return estimator.finish()


def line(**body: Any) -> bytes:
    return json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/x", "body": {"model": "m"} | body}).encode()


def chat(text: Any = "x" * 40, **fields: Any) -> bytes:
    return line(messages=[{"role": "user", "content": text}], **fields)


def numbers(content: bytes) -> tuple[int, int, int]:
    found = estimate(content)
    return found.num_requests, found.estimated_input_tokens, found.estimated_output_tokens


def test_a_chat_line_counts_its_text_and_a_template_allowance() -> None:
    assert numbers(chat("x" * 41, max_tokens=7)) == (1, 11 + 8 + 8, 7)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 100),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 9}, 9),
        ({"max_tokens": 7, "max_completion_tokens": 9}, 9),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": 7, "n": 3}, 21),
        ({"n": 3}, 300),
        ({"max_tokens": "7"}, 100),
        ({"max_tokens": -1}, 100),
        ({"max_tokens": 10**30}, 100),
        ({"max_tokens": 2**31, "n": 2**31}, 100),
        ({"max_tokens": 7, "n": 129}, 7),
        ({"max_tokens": True}, 100),
        ({"max_tokens": None}, 100),
    ],
)
def test_output_is_the_lines_own_limit_times_n(fields: dict[str, Any], expected: int) -> None:
    assert numbers(chat(**fields))[2] == expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("x" * 8, (1, 2, 16)),
        ("é" * 8, (1, 4, 16)),
        ([5, 6, 7], (1, 3, 16)),
        (["x" * 8, "y" * 4], (1, 3, 32)),
        ([[5, 6], [7]], (1, 3, 32)),
        ([], (1, 0, 0)),
    ],
)
def test_prompts_come_in_four_forms(prompt: Any, expected: tuple[int, int, int]) -> None:
    assert numbers(line(prompt=prompt)) == expected


def test_a_completion_without_a_limit_counts_the_tokens_that_it_generates() -> None:
    body = {"model": "m", "prompt": "x" * 8}
    request = parse_body(COMPLETION_ENDPOINT, body)
    assert request.sampling.max_tokens is not None
    assert numbers(line(**body))[2] == numbers(line(**body, max_tokens=None))[2] == request.sampling.max_tokens
    assert numbers(line(**body, max_tokens=500))[2] == 500


@pytest.mark.parametrize("max_tokens", [8191, 8192, 8193, 2**31 - 1])
def test_a_line_with_every_parameter_at_its_highest_counts_no_less_than_a_smaller_one(max_tokens: int) -> None:
    huge = line(prompt=["x"] * 2048, n=128, max_tokens=max_tokens)
    assert numbers(huge)[2] == min(2048 * 128 * max_tokens, 2**31)


def test_tools_count_as_input_unless_they_are_hidden_from_the_model() -> None:
    tools = [{"type": "function", "function": {"name": f"f{n}", "description": "d" * 4000}} for n in range(128)]
    plain = numbers(chat())[1]
    assert numbers(chat(tools=tools))[1] - plain == -(-len(json.dumps(tools, separators=(",", ":"))) // 4)
    assert numbers(chat(tools=tools, tool_choice="none"))[1] == numbers(chat(tools=None))[1] == plain


def test_tool_calls_of_a_history_count_as_input() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"text": "x" * 4000})}}
    calling = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert 1000 < numbers(line(messages=[calling]))[1] < 1100


def test_tools_nested_too_deeply_to_measure_leave_the_output_as_the_line_sets_it() -> None:
    schema: dict[str, Any] = {}
    for _ in range(300):
        schema = {"properties": schema}
    deep = chat(tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}], max_tokens=7000, n=10)
    assert numbers(deep) == (1, -(-len(deep) // 4), 70_000)


def test_text_parts_count_like_text() -> None:
    parts = [{"type": "text", "text": "x" * 8}, {"type": "text", "text": "y" * 4}]
    assert numbers(chat(parts))[1] == 2 + 1 + 16


def test_blank_lines_bom_crlf_and_a_missing_final_newline_are_no_requests() -> None:
    one = chat()
    content = b"\xef\xbb\xbf" + one + b"\r\n\r\n  \n\n" + one + b"\n" + one
    assert estimate(content).num_requests == 3
    assert estimate(content) == estimate(b"\n".join([one] * 3))
    assert numbers(b"") == numbers(b"\xef\xbb\xbf\n \n\r\n") == (0, 0, 0)


@pytest.mark.parametrize(
    "bad",
    [
        b"{", b"[]", b"7", b"null", b'"x"', b"\xff\xfe", b"{}", b'{"body": 3}', b'{"body": {}}', b'{"body": []}',
        b'{"body": {"prompt": 3}}', b'{"body": {"messages": [3]}}', b'{"body": {"messages": "hello"}}',
        b'{"body": {"messages": [{"content": [3]}]}}', b'{"body": {"messages": [{"content": [{"type": "image"}]}]}}',
        b'{"body": {"prompt": [null]}}', b'{"body": {"prompt": [["a", 3], {}]}}',
        b'{"body": {"prompt": ' + b"[" * 900 + b"]" * 900 + b"}}", b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_bad_line_counts_as_a_request_and_never_fails(bad: bytes) -> None:
    found = estimate(bad + b"\n" + chat())
    assert found.num_requests == 2
    assert found.estimated_output_tokens in {100 + 16, 100 + 100}


def test_a_prompt_nested_too_deeply_is_estimated_by_its_bytes() -> None:
    depth = 1000
    raw = b'{"body": {"prompt": ' + b"[" * depth + b"]" * depth + b"}}"
    body = orjson.loads(raw)["body"]
    assert estimate_tokens(raw, body, default_max_tokens=100) == -(-len(raw) // 4) + 16


@given(st.lists(st.sampled_from([chat(), line(prompt="x"), b"", b"  ", b"{", b"\r", "é".encode()])), st.integers(1, 50))
def test_pieces_of_any_size_give_the_same_estimate(lines: list[bytes], piece: int) -> None:
    content = b"\n".join(lines)
    assert estimate(content, piece=piece) == estimate(content)


@given(st.binary(max_size=300))
def test_any_bytes_are_estimated(content: bytes) -> None:
    kept = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    assert estimate(content).num_requests == sum(1 for part in kept if part.strip(b" \t\n\r\x0b\x0c"))


def test_a_line_too_long_to_hold_is_one_request() -> None:
    estimator = InputEstimator(default_max_tokens=100)
    for _ in range(12):
        estimator.feed(b"x" * 1024 * 1024)
        assert len(estimator._splitter._held) <= 8 * 1024 * 1024
    estimator.feed(b"\n" + chat(max_tokens=5))
    found = estimator.finish()
    assert (found.num_requests, found.estimated_output_tokens) == (2, 105)
    assert found.estimated_input_tokens == 12 * 1024 * 1024 // 4 + 10 + 16


def test_estimating_keeps_up_with_an_upload() -> None:
    """200,000 lines of 250 bytes; the bound is ten times what two busy cores need."""
    piece = b"".join(chat("word " * 25, max_tokens=50) + b"\n" for _ in range(1000))
    estimator = InputEstimator(default_max_tokens=100)
    before = time.process_time()
    for _ in range(200):
        estimator.feed(piece)
    assert estimator.finish().num_requests == 200_000
    assert time.process_time() - before < 10
