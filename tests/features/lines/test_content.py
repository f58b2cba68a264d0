"""Tests of what lists and pages show of a line."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from features.lines.content import MAX_TEXT, Said, prompt_of, readable, said, shown
from features.lines.reader import FoundLine
from jobs.lines.line_index import Kind
from jobs.lines.output_lines import error_line, output_line
from jobs.lines.responses import embeddings_body, error_body


def line_of(content: bytes, *, most: int | None = None) -> FoundLine:
    return FoundLine(line_no=0, kind=Kind(False, 200, None), size=len(content), content=content[:most])


def answer(body: Any) -> bytes:
    return output_line("b", 0, 'the "id"', status_code=200, body=body)


CHAT = {"id": "x", "model": "m", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Grüße\n" * 99}}]}


@pytest.mark.parametrize(
    ("content", "excerpt"),
    [
        (answer(CHAT), ("Grüße\n" * 99)[:300]),
        (answer({"object": "text_completion", "choices": [{"text": "yes", "finish_reason": "stop"}]}), "yes"),
        (answer(embeddings_body([[0.5]], model="m", num_tokens=1)), None),
        (answer({"choices": []}), None),
        (error_line("b", 0, 'the "id"', code="late", message="too late"), "too late"),
        (output_line("b", 0, 'the "id"', status_code=400, body=error_body("bad", code="c", param=None)), "bad"),
        (error_line("b", 0, 'the "id"', code="late", message=""), None),
    ],
)
def test_an_excerpt_is_the_beginning_of_what_was_said(content: bytes, excerpt: str | None) -> None:
    line = shown(line_of(content))
    assert (line.custom_id, line.excerpt or None) == ('the "id"', excerpt)


@pytest.mark.parametrize("most", [10, 40, 120, 260, 261, 262, 400])
def test_any_beginning_of_a_line_can_be_shown(most: int) -> None:
    line = shown(line_of(answer(CHAT), most=most))
    assert line.custom_id in (None, 'the "id"')
    assert line.excerpt is None or ("Grüße\n" * 99).startswith(line.excerpt)


@pytest.mark.parametrize("before", range(1190, 1202))
@pytest.mark.parametrize("text", ["\x1b", "\n", "\\", '"', "😀"])
def test_an_excerpt_never_ends_inside_an_escape(before: int, text: str) -> None:
    content = answer({"choices": [{"message": {"role": "assistant", "content": "a" * before + text * 20}}]})
    for most in (len(content) - 10, content.index(b"aaa") + before + 3):
        assert shown(line_of(content, most=most)).excerpt == "a" * 300


def test_an_excerpt_of_escapes_alone_is_shown() -> None:
    content = answer({"choices": [{"message": {"role": "assistant", "content": "\x1b" * 2000}}]})
    assert shown(line_of(content, most=5000)).excerpt == "\x1b" * 300


def test_a_line_without_a_custom_id_has_none() -> None:
    assert shown(line_of(error_line("b", 0, None, code="c", message="m"))).custom_id is None
    long = error_line("b", 0, None, code="c", message="m" * 500)
    assert shown(line_of(long, most=300)).custom_id is None


def test_a_prompt_is_its_messages_or_its_texts() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": parts}]
    assert prompt_of({"body": {"messages": messages}}) == [
        Said(by="system", text="be brief"),
        Said(by="user", text="one\n\ntwo"),
    ]
    assert prompt_of({"body": {"prompt": ["a", "b"]}}) == [Said(by="prompt", text="a\n\nb")]
    for other in (None, "text", {}, {"body": 5}, {"body": {"messages": ["no object"]}}):
        assert prompt_of(other) == []


def test_an_answer_is_its_choices_with_thoughts_and_calls() -> None:
    call = {"id": "call_1", "function": {"name": "find", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]}
    thoughts, calls = said(orjson.loads(answer({"choices": [{"message": message}]})))
    assert thoughts == Said(by="thoughts", text="hm")
    assert orjson.loads(calls.text) == [call]
    assert said(orjson.loads(answer({"choices": [{"text": "yes"}]}))) == [Said(by="answer", text="yes")]
    assert said(orjson.loads(error_line("b", 0, "a", code="c", message="no"))) == [Said(by="error", text="no")]
    assert said(None) == []


def nested(levels: int, inner: str) -> str:
    return "[" * levels + inner + "]" * levels


def test_a_long_line_is_shown_as_it_is_and_cut() -> None:
    assert readable(b'{"a":[1]}') == '{\n  "a": [\n    1\n  ]\n}'
    assert readable(b"no json") == "no json"
    for content in (nested(240, "1," * 200_000 + "1"), nested(240, '"Ä",' * 200_000 + "1"), "😀" * 200_000):
        assert readable(content.encode()) == content[:MAX_TEXT] + "…"


def test_long_tool_calls_are_not_indented() -> None:
    call = orjson.loads(nested(200, "1," * 200_000 + "1"))
    [part] = said(orjson.loads(answer({"choices": [{"message": {"role": "assistant", "tool_calls": [call]}}]})))
    assert part.text == orjson.dumps([call]).decode()[:MAX_TEXT] + "…"


def test_a_prompt_of_very_many_texts_is_cut() -> None:
    texts = [f"{number:05}" for number in range(50_000)]
    prompt = orjson.loads(nested(240, orjson.dumps(texts).decode()))
    [part] = prompt_of({"body": {"prompt": prompt}})
    assert part.text == "\n\n".join(texts)[:MAX_TEXT] + "…"


def test_texts_keep_their_order_at_any_depth() -> None:
    prompt = ["a", {"x": ["b", {"y": "c"}], "role": "not shown"}, [["d"], "e"]]
    assert prompt_of({"body": {"input": prompt}}) == [Said(by="input", text="a\n\nb\n\nc\n\nd\n\ne")]
    deep = orjson.loads(nested(1000, '"f"'))
    assert prompt_of({"body": {"input": deep}}) == [Said(by="input", text="f")]


def test_of_very_many_messages_the_first_are_shown() -> None:
    parts = prompt_of({"body": {"messages": [{"role": "r" * 500}] * 100_000}})
    assert (len(parts), parts[0].by, parts[-1]) == (401, "r" * 100, Said(by="…", text="…"))
