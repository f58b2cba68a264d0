"""Passages for a prompt: what a line asks an index for, where they go in its body, and how they are written there.

Pure: knows no index; who looks for the passages, and when, is `jobs.batches.retrieval`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.lines.body_checks import BodyError, Check, flag, object_, refuse_unknown, text, unsupported, whole
from protocol.passages import ShownPassage, layout

PLACEHOLDER = "{{context}}"
"""Stands once in the messages of a line with a context, where its passages go."""
DEFAULT_TOKENS = 1024
DEFAULT_TOP_K = 5
MAX_TOP_K = 100
TOKENS_AROUND = 16
"""Of a passage, as estimated: its number, the name of its document and the blank line behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRequest:
    """What a line wants to be shown."""

    index: str
    """The id of an index."""
    query: str
    """What its passages are to be about; one without a word is the line's error, not that of its file."""
    max_tokens: int = DEFAULT_TOKENS
    """Of all passages together, as the index counts them."""
    top_k: int = DEFAULT_TOP_K
    """Passages, at most."""
    truncate: bool = False
    """A query that is longer than the index's model reads at once is embedded as far as it does, and not refused."""

    @property
    def most_tokens(self) -> int:
        """Return about how many tokens a prompt grows by, at most."""
        return self.max_tokens + TOKENS_AROUND * self.top_k


def context(name: str, value: Any) -> ContextRequest:
    """Check what a line asks an index for. Raises BodyError."""
    given = object_(name, value)
    refuse_unknown(name, given, set(_FIELDS))
    found = {key: _FIELDS[key](f"{name}.{key}", one) for key, one in given.items() if one is not None}
    for key in ("index", "query"):
        if key not in found:
            raise BodyError(f"{name}.{key}", f"{name}.{key} is missing", code="missing_required_parameter")
    return ContextRequest(**found)


def no_context(name: str, _value: Any) -> ContextRequest:
    """Refuse it where a prompt is text that no chat template guards."""
    raise unsupported(
        name,
        f"{name} is for /v1/chat/completions: in a completion's prompt the words of a document could be special tokens",
    )


def check_placeholder(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise BodyError unless messages, which are checked otherwise, say at one place where passages go."""
    count = sum((message["content"] or "").count(PLACEHOLDER) for message in messages)
    if count == 0:
        message = f"context is given, and messages do not say where its passages go; write {PLACEHOLDER} there, once"
        raise BodyError("context", message)
    if count > 1:
        raise BodyError("context", f"{PLACEHOLDER} stands {count} times in messages; write it once")


def with_passages(body: Mapping[str, Any], passages: Sequence[ShownPassage]) -> dict[str, Any]:
    """Return a chat's body that asks for no context: its passages stand where it said. The one given is not changed."""
    written = layout(passages)
    messages = [{**message, "content": _filled(message.get("content"), written)} for message in body["messages"]]
    return {key: value for key, value in body.items() if key != "context"} | {"messages": messages}


def _filled(content: Any, written: str) -> Any:
    """Return the content of a message, a text or parts with one each, or none."""
    if isinstance(content, str):
        return content.replace(PLACEHOLDER, written)
    if content is None:
        return None
    return [{**part, "text": part["text"].replace(PLACEHOLDER, written)} for part in content]


_FIELDS: dict[str, Check] = {
    "index": text,
    "query": text,
    "max_tokens": whole(1),
    "top_k": whole(1, MAX_TOP_K),
    "truncate": flag,
}
