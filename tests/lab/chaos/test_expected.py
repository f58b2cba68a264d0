"""Tests of the errors that the chaos benchmark finds in a batch's files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.chaos.expected import Answer, Lines, check_files

LINES = Lines(name="b", num=3, model="echo")


def answer(number: int, **changed: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 4, "completion_tokens": 5}
    body = {"choices": [{"text": LINES.prompt(number)}], "usage": usage} | changed
    return {"custom_id": LINES.custom_id(number), "response": {"status_code": 200, "body": body}, "error": None}


def not_run(number: int, code: str = "batch_cancelled") -> dict[str, Any]:
    return {"custom_id": LINES.custom_id(number), "response": None, "error": {"code": code, "message": "no"}}


def problems(output: list[dict[str, Any]], errors: list[dict[str, Any]], *, code: str | None = None) -> list[str]:
    def written(rows: list[dict[str, Any]]) -> bytes:
        return "".join(f"{json.dumps(row)}\n" for row in rows).encode()

    return check_files(LINES, written(output), written(errors), not_run=code, count_tokens=lambda prompt: 4).problems


def test_a_model_of_its_own_words_is_held_to_them() -> None:
    answers = {LINES.prompt(number): Answer(text=LINES.prompt(number)[::-1], num_tokens=5) for number in range(3)}

    def check(*texts: str) -> list[str]:
        rows = [answer(number, choices=[{"text": text}]) for number, text in enumerate(texts)]
        output = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        return check_files(LINES, output, b"", not_run=None, count_tokens=lambda prompt: 4, answers=answers).problems

    right = [each.text for each in answers.values()]
    assert check(*right) == []
    assert check(f"{right[0]}\ufffd", *right[1:]) == [], "engines show broken characters or leave them out"
    assert check(right[0], LINES.prompt(1), right[2]) == [f"b-1 has the answer {LINES.prompt(1)!r}"]


def test_every_line_once_with_its_own_answer_is_right() -> None:
    assert problems([answer(0), answer(1), answer(2)], []) == []
    assert problems([answer(1)], [not_run(0), not_run(2)], code="batch_cancelled") == []


@pytest.mark.parametrize(
    ("output", "errors", "found"),
    [
        ([answer(0), answer(2)], [], "b-1 is lost"),
        ([answer(0), answer(1), answer(2), answer(1)], [], "b-1 is present 2 times"),
        ([answer(0), answer(1)], [not_run(2)], "b-2 failed: batch_cancelled"),
        ([answer(0), answer(1), answer(2) | {"custom_id": "x"}], [], "x was never submitted"),
        ([answer(0), answer(1), answer(2, choices=[{"text": "line 1 of b"}])], [], "b-2 has the answer 'line 1 of b'"),
        (
            [answer(0), answer(1), answer(2, usage={"prompt_tokens": 4, "completion_tokens": 4})],
            [],
            "b-2 reports (4, 4) tokens",
        ),
    ],
)
def test_what_is_wrong_is_named(output: list[dict[str, Any]], errors: list[dict[str, Any]], found: str) -> None:
    assert found in problems(output, errors)
