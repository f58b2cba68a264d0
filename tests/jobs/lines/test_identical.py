from __future__ import annotations

import json
from typing import Any

import pytest

from jobs.lines.bodies import CHAT_ENDPOINT, parse_body
from jobs.lines.identical import IdenticalLines
from jobs.lines.reading import parse_line

BODY = {"model": "m", "messages": [{"role": "user", "content": "c1 or c2"}], "temperature": 0}


def originals(*lines: bytes) -> list[int | None]:
    """Return what is found of lines, one after the other."""
    known, found = IdenticalLines(), []
    for number, content in enumerate(lines):
        line = parse_line(content, line_no=number, endpoint=CHAT_ENDPOINT)
        found.append(known.add(line, content, parse_body(CHAT_ENDPOINT, line.body)))
    return found


def one(custom_id: str, **changes: Any) -> bytes:
    line = {"custom_id": custom_id, "method": "POST", "url": CHAT_ENDPOINT, "body": BODY | changes}
    return json.dumps(line).encode()


def test_lines_that_differ_in_their_custom_id_alone_are_copies_of_the_first() -> None:
    assert originals(one("a"), one("b"), one("c1"), one("a much longer one")) == [None, 0, 0, 0]
    assert originals(one("a", seed=1, temperature=1), one("b", seed=1, temperature=1)) == [None, 0]


@pytest.mark.parametrize(
    "changes",
    [{"temperature": 1}, {"max_tokens": 7}, {"messages": [{"role": "user", "content": "c3"}]}, {"logprobs": True}],
)
def test_lines_that_differ_or_whose_answers_are_drawn_are_not(changes: dict[str, Any]) -> None:
    assert originals(one("a"), one("b", **changes)) == [None, None]
    if changes == {"temperature": 1}:
        assert originals(one("a", **changes), one("b", **changes)) == [None, None]


def test_a_custom_id_that_stands_elsewhere_too_makes_no_two_requests_one() -> None:
    def saying(text: str, custom_id: str) -> bytes:
        line = {"body": BODY | {"messages": [{"role": "user", "content": text}]}, "custom_id": custom_id}
        return json.dumps(line | {"method": "POST", "url": CHAT_ENDPOINT}).encode()

    assert originals(saying("x", "x"), saying("y", "y")) == [None, None]
    assert originals(saying("z", "x"), saying("z", "y")) == [None, 0]
    assert originals(one("é"), one("ü")) == [None, None], "written with escapes: each is computed"
