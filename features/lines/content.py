"""What a line of a result file shows: its request's custom_id, and the beginning of its answer or error. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from features.lines.reader import FoundLine

EXCERPT_CHARACTERS = 300
_HEAD = re.compile(rb'\{"id":"[^"]*","custom_id":("(?:[^"\\]|\\.)*"|null),')
_CONTENT = re.compile(rb'"(?:content|text|message)":"((?:[^"\\]|\\.){0,1200})')
_NOT_SHOWN = frozenset({"id", "object", "model", "role", "finish_reason", "request_id", "type", "created"})
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
    if type(value) is str:
        if value:
            yield value
    elif type(value) is list:
        for each in value:
            yield from _texts(each)
    elif type(value) is dict:
        for name, each in value.items():
            if name not in _NOT_SHOWN:
                yield from _texts(each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A part of a prompt or an answer that people read."""

    by: str
    """The role of a message, or what the part is."""
    text: str


def prompt_of(request: Any) -> list[Said]:
    """Return the parts of a request's prompt; none where it is not one of a line."""
    body = request.get("body") if type(request) is dict else None
    if type(body) is not dict:
        return []
    messages = body.get("messages")
    if type(messages) is list:
        return [_message(each) for each in messages if type(each) is dict]
    names = ("prompt", "input", "query", "documents")
    return [Said(by=name, text="\n\n".join(_texts(body[name]))) for name in names if name in body]


def said(result: dict[str, Any] | None) -> list[Said]:
    """Return the parts of an answer, or the error."""
    if result is None:
        return []
    body = (result["response"] or {}).get("body")
    error = result["error"] or (body.get("error") if type(body) is dict else None)
    if error is not None:
        return [Said(by="error", text=str(error.get("message", "")) if type(error) is dict else str(error))]
    choices = body.get("choices") if type(body) is dict else None
    if type(choices) is not list:
        return [Said(by="answer", text="\n\n".join(_texts(body)))]
    return [part for choice in choices if type(choice) is dict for part in _choice(choice)]


def _choice(choice: dict[str, Any]) -> Iterator[Said]:
    message = choice.get("message")
    if type(message) is not dict:
        yield Said(by="answer", text=str(choice.get("text", "")))
        return
    if message.get("reasoning_content"):
        yield Said(by="thoughts", text=str(message["reasoning_content"]))
    yield _message(message)


def _message(message: dict[str, Any]) -> Said:
    """Return the text of a message; its tool calls as JSON where it has some."""
    text = "\n\n".join(_texts(message.get("content")))
    if message.get("tool_calls"):
        calls = orjson.dumps(message["tool_calls"], option=orjson.OPT_INDENT_2).decode()
        text = f"{text}\n\n{calls}" if text else calls
    return Said(by=str(message.get("role", "message")), text=text)
