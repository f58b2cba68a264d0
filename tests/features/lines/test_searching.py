"""Tests of which lines have a text."""

from __future__ import annotations

import pytest

from features.lines.searching import Wanted
from jobs.lines.output_lines import error_line, output_line
from jobs.lines.responses import error_body

MESSAGE = {"role": "assistant", "content": 'an index":\nof "Ä\\"'}
ANSWER = output_line("b", 0, "id-1", status_code=200, body={"choices": [{"index": 0, "message": MESSAGE}]})
CALL = {"id": "call-1", "type": "function", "function": {"name": "find_orders", "arguments": '{"of":"Ada"}'}}
TOKENS = {"content": [{"token": "tok", "bytes": [116], "logprob": -0.5, "top_logprobs": []}]}
CALLING = output_line(
    *("b", 0, "id-2"),
    status_code=200,
    body={
        "choices": [{"message": {"content": None, "tool_calls": [CALL]}, "logprobs": TOKENS}],
        "system_fingerprint": "fp_1",
    },
)
REFUSED = output_line("b", 0, "id-3", status_code=400, body=error_body("too hot", code="range", param="temperature"))
ERROR = error_line("b", 0, None, code="late", message="the message")


@pytest.mark.parametrize(
    ("line", "text", "is_in"),
    [
        (ANSWER, "index", True),
        (ANSWER, 'index":\nof "Ä\\"', True),
        (ANSWER, "choices", False),
        (ANSWER, "content", False),
        (ANSWER, "assistant", False),
        (ANSWER, "id-1", True),
        (ANSWER, "batch_req", False),
        (CALLING, "find_orders", True),
        (CALLING, "Ada", True),
        (CALLING, "call-1", False),
        (CALLING, "tok", False),
        (CALLING, "fp_1", False),
        (REFUSED, "too hot", True),
        (REFUSED, "range", False),
        (REFUSED, "temperature", False),
        (ERROR, "message", True),
        (ERROR, "late", False),
        (ERROR, "custom_id", False),
    ],
)
def test_a_text_is_in_what_people_read(line: bytes, text: str, is_in: bool) -> None:
    wanted = Wanted(text)
    assert wanted.is_in(line) is is_in


def test_bytes_of_a_text_are_those_of_the_files() -> None:
    assert Wanted('Ä "\n').needle == 'Ä \\"\\n'.encode()
