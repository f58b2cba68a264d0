"""What a line of a result file shows: its request's custom_id, and the beginning of its answer or error. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from features.lines.reader import FoundLine

EXCERPT_CHARACTERS = 300
MAX_TEXT = 100_000
"""Characters of one text on a page."""
_MAX_TEXTS = 400_000
"""Characters of the parts of a prompt or an answer on a page, together."""
_LEAST_COUNTED = 1000
"""Characters that a part counts for at least: a line may have a million empty messages."""
_MAX_NAME = 100
_MAX_INDENTED = 200_000
"""Bytes of JSON that is indented: nested deeply, it has hundreds of times as many then."""
_HEAD = re.compile(rb'\{"id":"[^"]*","custom_id":("(?:[^"\\]|\\.)*"|null),')
_CONTENT = re.compile(rb'"(?:content|text|message)":"((?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u]){0,1200})')
_NOT_SHOWN = frozenset(
    {"id", "object", "model", "role", "finish_reason", "request_id", "type", "created"}
    | {"code", "param", "system_fingerprint", "service_tier", "logprobs", "prompt_logprobs"}
    | {"tool_call_id", "reasoning_finish_reason", "embedding"}
)
"""Members of an answer that are not part of its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A line as lists show it."""

    custom_id: str | None
    excerpt: str | None
    """The first characters of the answer's text or of the error's message; None where there is no text."""


def shown(line: FoundLine) -> Shown:
    """Return what a list shows of a line."""
    if not line.is_whole:
        return _of_beginning(line.content)
    result = orjson.loads(line.content)
    text = next(texts_of(result), None)
    return Shown(custom_id=result["custom_id"], excerpt=None if text is None else text[:EXCERPT_CHARACTERS])


def _of_beginning(content: bytes) -> Shown:
    head, text = _HEAD.match(content), _CONTENT.search(content)
    return Shown(
        custom_id=None if head is None else orjson.loads(head[1]),
        excerpt=None if text is None else _unescaped(text[1])[:EXCERPT_CHARACTERS],
    )


def _unescaped(content: bytes) -> str:
    """Return the text of the beginning of a JSON string, which may be cut inside a character."""
    text = content.decode(errors="ignore")
    parsed = orjson.loads(f'"{text}"')
    assert isinstance(parsed, str)
    return parsed


def texts_of(result: dict[str, Any]) -> Iterator[str]:
    """Yield the texts of a result: the error's message, or those of the response's body; empty ones are left out."""
    error = result["error"]
    if error is not None:
        yield str(error.get("message", ""))
        return
    yield from _texts((result["response"] or {}).get("body"))


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts of a value in their order; without recursion, which takes each of them through every level."""
    rest = [value]
    while rest:
        value = rest.pop()
        if type(value) is str:
            if value:
                yield value
        elif type(value) is list:
            rest.extend(reversed(value))
        elif type(value) is dict:
            rest.extend(each for name, each in reversed(value.items()) if name not in _NOT_SHOWN)


def readable(content: bytes) -> str:
    """Return JSON indented; as it is where it is long, nested too deeply, or none. It is cut after MAX_TEXT."""
    if len(content) <= _MAX_INDENTED:
        with suppress(orjson.JSONDecodeError, orjson.JSONEncodeError):
            content = orjson.dumps(orjson.loads(content), option=orjson.OPT_INDENT_2)
    return _cut(content[: 4 * (MAX_TEXT + 1)].decode(errors="replace"))  # a character has at most 4 bytes


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"


def _paragraphs(texts: Iterable[str]) -> str:
    """Return the first MAX_TEXT characters of texts."""
    taken, size = list[str](), 0
    for text in texts:
        taken.append(text)
        size += len(text)
        if size > MAX_TEXT:
            break
    return _cut("\n\n".join(taken))


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A part of a prompt or an answer that people read."""

    by: str
    """The role of a message, or what the part is."""
    text: str


def prompt_of(request: Any) -> list[Said]:
    """Return the parts of a request's prompt; none where it is not one of a line."""
    body = request.get("body") if type(request) is dict else None
    return [] if type(body) is not dict else _first(_prompt_parts(body))


def said(result: dict[str, Any] | None) -> list[Said]:
    """Return the parts of an answer, or the error."""
    return [] if result is None else _first(_answer_parts(result))


def _first(parts: Iterator[Said]) -> list[Said]:
    """Return the first parts, and where there are too many a last one that shows it; the others are not made."""
    taken, size = list[Said](), 0
    for part in parts:
        if size >= _MAX_TEXTS:
            return [*taken, Said(by="…", text="…")]
        taken.append(part)
        size += max(len(part.text), _LEAST_COUNTED)
    return taken


def _prompt_parts(body: dict[str, Any]) -> Iterator[Said]:
    messages = body.get("messages")
    if type(messages) is list:
        yield from (_message(each) for each in messages if type(each) is dict)
        return
    for name in ("prompt", "input", "query", "documents"):
        if name in body:
            yield Said(by=name, text=_paragraphs(_texts(body[name])))


def _answer_parts(result: dict[str, Any]) -> Iterator[Said]:
    body = (result["response"] or {}).get("body")
    error = result["error"] or (body.get("error") if type(body) is dict else None)
    choices = body.get("choices") if type(body) is dict else None
    if error is not None:
        yield Said(by="error", text=_cut(str(error.get("message", "") if type(error) is dict else error)))
    elif type(choices) is not list:
        yield Said(by="answer", text=_paragraphs(_texts(body)))
    else:
        for choice in choices:
            if type(choice) is dict:
                yield from _choice(choice)


def _choice(choice: dict[str, Any]) -> Iterator[Said]:
    message = choice.get("message")
    if type(message) is not dict:
        yield Said(by="answer", text=_cut(str(choice.get("text", ""))))
        return
    if message.get("reasoning_content"):
        yield Said(by="thoughts", text=_cut(str(message["reasoning_content"])))
    yield _message(message)


def _message(message: dict[str, Any]) -> Said:
    """Return the text of a message; its tool calls as JSON where it has some."""
    text = _paragraphs(_texts(message.get("content")))
    if message.get("tool_calls"):
        calls = readable(orjson.dumps(message["tool_calls"]))
        text = _cut(f"{text}\n\n{calls}" if text else calls)
    return Said(by=str(message.get("role", "message"))[:_MAX_NAME], text=text)
