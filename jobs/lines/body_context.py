"""Passages for a prompt: a line's query to an index, their place in its body, and their layout.

Pure and independent of the index; `features.retrieval.fills` looks up the passages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.lines.body_checks import BodyError, Check, flag, object_, refuse_unknown, text, unsupported, whole
from protocol.passages import ShownPassage, layout

PLACEHOLDER = "{{context}}"
"""Marks, exactly once in the messages of a line with a context, where its passages go."""
DEFAULT_TOKENS = 1024
DEFAULT_TOP_K = 5
MAX_TOP_K = 100
TOKENS_AROUND = 16
"""Estimated tokens around a passage: its number, the name of its document and the following blank line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRequest:
    """The passages that a line requests."""

    index: str
    """The id of an index."""
    query: str
    """The text to search for. A query without words is the line's error, not the file's."""
    max_tokens: int = DEFAULT_TOKENS
    """Limit for all passages together, as the index counts tokens."""
    top_k: int = DEFAULT_TOP_K
    """Most passages."""
    truncate: bool = False
    """Whether a query longer than the embedding model reads is truncated instead of refused."""

    @property
    def most_tokens(self) -> int:
        """Return the approximate maximum of tokens added to a prompt."""
        return self.max_tokens + TOKENS_AROUND * self.top_k


def context(name: str, value: Any) -> ContextRequest:
    """Check and parse a line's query to an index. Raises BodyError."""
    values = object_(name, value)
    refuse_unknown(name, values, set(_FIELDS))
    fields = {key: _FIELDS[key](f"{name}.{key}", one) for key, one in values.items() if one is not None}
    for key in ("index", "query"):
        if key not in fields:
            raise BodyError(f"{name}.{key}", f"{name}.{key} is missing", code="missing_required_parameter")
    return ContextRequest(**fields)


def no_context(name: str, _value: Any) -> ContextRequest:
    """Refuse a context in a plain prompt, which no chat template guards."""
    raise unsupported(
        name,
        f"{name} is for /v1/chat/completions: in a completion's prompt the words of a document could be special tokens",
    )


def check_placeholder(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise BodyError unless the messages, checked otherwise, have exactly one placeholder."""
    count = sum((message["content"] or "").count(PLACEHOLDER) for message in messages)
    if count == 0:
        message = f"context is given, and messages have no place for its passages; write {PLACEHOLDER} there, once"
        raise BodyError("context", message)
    if count > 1:
        raise BodyError("context", f"{PLACEHOLDER} stands {count} times in messages; write it once")


def with_passages(body: Mapping[str, Any], passages: Sequence[ShownPassage]) -> dict[str, Any]:
    """Return a copy of a chat body with the passages in place of their placeholder and without `context`."""
    passages_text = layout(passages)
    messages = [{**message, "content": _filled(message.get("content"), passages_text)} for message in body["messages"]]
    return {key: value for key, value in body.items() if key != "context"} | {"messages": messages}


def _filled(content: Any, passages_text: str) -> Any:
    """Return the content of a message (a text, parts with one text each, or None) with the passages inserted."""
    if isinstance(content, str):
        return content.replace(PLACEHOLDER, passages_text)
    if content is None:
        return None
    return [{**part, "text": part["text"].replace(PLACEHOLDER, passages_text)} for part in content]


_FIELDS: dict[str, Check] = {
    "index": text,
    "query": text,
    "max_tokens": whole(1),
    "top_k": whole(1, MAX_TOP_K),
    "truncate": flag,
}
