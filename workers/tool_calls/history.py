"""Rewrites the past tool calls of a conversation into the forms that chat templates read.

Templates disagree on how a message without text beside its calls is written, and on whether arguments are an object or
text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from jobs.lines.responses import SHORT_ID_LENGTH, short_call_id

Message = Mapping[str, Any]


class NoText(StrEnum):
    """The value of `content` if there is no text beside the calls."""

    ABSENT = "absent"  # transformers drops a null before the template sees it
    EMPTY = "empty"
    NULL = "null"  # needs KEEPING_NULLS


class Arguments(StrEnum):
    """Whether the arguments of a call are a JSON object or its text."""

    OBJECT = "object"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class HistoryForm:
    """One way in which a template reads past calls."""

    no_text: NoText
    arguments: Arguments

    def rewrite(self, messages: Sequence[Message]) -> list[Message]:
        """Return the conversation in this form; text beside calls stays unchanged."""
        return [self._with_calls(message) if "tool_calls" in message else message for message in messages]

    def _with_calls(self, message: Message) -> Message:
        content = message["content"] or ("" if self.no_text is NoText.EMPTY else None)
        return {**message, "content": content, "tool_calls": [self._call(call) for call in message["tool_calls"]]}

    def _call(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        arguments = call["function"]["arguments"]
        written = arguments if self.arguments is Arguments.TEXT else orjson.loads(arguments)
        return _with_function(call, arguments=written)


HISTORY_FORMS = tuple(
    HistoryForm(no_text, arguments)
    for arguments in (Arguments.OBJECT, Arguments.TEXT)  # most read an object; DeepSeek V3, R1 and its kin a text
    for no_text in (
        NoText.ABSENT,  # first: templates that print content unchecked would print a null as "None"
        NoText.NULL,  # templates that test whether content is none, and write a separate turn if it is not
        NoText.EMPTY,  # templates that join content with other text
    )
)
"""In the order in which they are tried."""

_SHORT_ID = re.compile(rf"[A-Za-z0-9]{{{SHORT_ID_LENGTH}}}")

KEEPING_NULLS = (
    "{%- set with_nulls = namespace(messages=[]) -%}"
    "{%- for message in messages -%}"
    "{%- set message = message if 'content' in message else dict(message, content=none) -%}"
    "{%- set with_nulls.messages = with_nulls.messages + [message] -%}"
    "{%- endfor -%}"
    "{%- set messages = with_nulls.messages +%}"
)
"""Prefix of a chat template that restores the null of messages without content, which transformers has dropped."""


def with_short_ids(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the conversation with ids of calls that are not short replaced by those of `short_call_id`.

    An id gets the same replacement in a call and in its result.
    """
    return [_with_short_ids(message) for message in messages]


def _with_short_ids(message: Message) -> Message:
    changed = dict(message)
    if "tool_calls" in message:
        changed["tool_calls"] = [{**call, "id": _short_id(call["id"])} for call in message["tool_calls"]]
    if "tool_call_id" in message:
        changed["tool_call_id"] = _short_id(message["tool_call_id"])
    return changed


def _short_id(call_id: str) -> str:
    return call_id if _SHORT_ID.fullmatch(call_id) else short_call_id(call_id)


def has_ids(messages: Sequence[Message]) -> bool:
    return any("tool_calls" in message or "tool_call_id" in message for message in messages)


def has_calls(messages: Sequence[Message]) -> bool:
    return any("tool_calls" in message for message in messages)


def with_marks(messages: Sequence[Message]) -> tuple[list[Message], list[str]]:
    """Return the conversation with a mark for each called function's name, and the marks.

    A template that shows the calls shows the marks; the functions' names may also occur elsewhere in a conversation.
    """
    marks: list[str] = []

    def marked(call: Mapping[str, Any]) -> Mapping[str, Any]:
        marks.append(f"past_call_{len(marks)}_of_tokenmill")
        return _with_function(call, name=marks[-1])

    conversation = [
        {**message, "tool_calls": [marked(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]
    return conversation, marks


def _with_function(call: Mapping[str, Any], **fields: Any) -> Mapping[str, Any]:
    return {**call, "function": {**call["function"], **fields}}
