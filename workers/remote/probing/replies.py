"""What came back for a probe's request, read from any JSON without trusting its form. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson


class Seen(StrEnum):
    """What was seen of a capability."""

    YES = "yes"
    NO = "no"  # answered as if the parameter were not there
    ABSENT = "absent"  # refused
    UNCLEAR = "unclear"  # answered, but with or without the effect the answer could be this one
    LATE = "late"  # no whole answer in time
    NEVER = "never"  # no answer


CONCLUSIVE = frozenset({Seen.YES, Seen.NO, Seen.ABSENT, Seen.UNCLEAR})
"""With the others the capability is probed again soon; until then what was known of it stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back."""

    seen: Seen
    """YES: an answer, which is yet to be judged."""
    body: Mapping[str, Any]

    @property
    def choices(self) -> list[Mapping[str, Any]]:
        return [choice for choice in list_of(self.body.get("choices")) if isinstance(choice, dict)]

    @property
    def choice(self) -> Mapping[str, Any]:
        """Return the first choice; an empty one if there is none."""
        return next(iter(self.choices), {})

    @property
    def texts(self) -> list[str]:
        return [_text(choice) for choice in self.choices]

    @property
    def text(self) -> str:
        return next(iter(self.texts), "")

    @property
    def content(self) -> str:
        """Return what stands where an answer does, without thoughts."""
        message = self.choice.get("message", self.choice)
        content = (message.get("content") or message.get("text")) if isinstance(message, dict) else None
        return content if isinstance(content, str) else ""

    @property
    def end(self) -> object:
        return self.choice.get("finish_reason")

    @property
    def is_cut(self) -> bool:
        """Return whether the answer ended at its limit of tokens."""
        return self.end == "length"

    @property
    def thinks(self) -> bool:
        return bool(self.text) and not self.content

    @property
    def called(self) -> list[Any]:
        """Return the functions of its tool calls."""
        message = self.choice.get("message")
        calls = list_of(message.get("tool_calls")) if isinstance(message, dict) else []
        return [call.get("function") for call in calls if isinstance(call, dict)]

    def count(self, name: str) -> int | None:
        usage = self.body.get("usage")
        value = usage.get(name) if isinstance(usage, dict) else None
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def json_of(text: Any) -> Any:
    """Return a text's JSON value; None for what is none."""
    try:
        return orjson.loads(text) if isinstance(text, str) else None
    except orjson.JSONDecodeError:
        return None


def list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(choice: Mapping[str, Any]) -> str:
    message = choice.get("message")
    holder = message if isinstance(message, dict) else choice
    parts = (holder.get(name) for name in ("content", "reasoning_content", "reasoning", "text"))
    return next((part for part in parts if isinstance(part, str) and part), "")
