"""The messages of a prompt file: a line `# system:`, `# user:` or `# assistant:` starts one; without any, it is one.

The file is split before anything is rendered, so no value of a row can start a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from features.pipelines.rows.templates.errors import TemplateRefusedError

_MARK = re.compile(r"^#[ \t]*(system|user|assistant):[ \t]*\r?$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One message's template."""

    role: str
    source: str
    first_line: int
    """Its line in the file, from 1."""


def parts_of(source: str) -> tuple[Part, ...]:
    """Split a prompt file into its messages. Raise TemplateRefusedError if they are not a conversation to answer."""
    marks = list(_MARK.finditer(source))
    if not marks:
        return (_part("user", source, start=0, end=len(source)),)
    if source[: marks[0].start()].strip():
        raise TemplateRefusedError(
            f"there is text before `{marks[0].group().strip()}`. Move it under that line or another such line.",
            line=1,
        )
    ends = [mark.start() for mark in marks[1:]] + [len(source)]
    parts = tuple(_part(mark[1], source, start=mark.end(), end=end) for mark, end in zip(marks, ends, strict=True))
    _require_conversation(parts)
    return parts


def _part(role: str, source: str, *, start: int, end: int) -> Part:
    """Return a part without the blank lines around its text."""
    text = source[start:end]
    kept = text.lstrip("\r\n")
    before = source[: start + len(text) - len(kept)]
    return Part(role=role, source=kept.rstrip(), first_line=before.count("\n") + 1)


def _require_conversation(parts: tuple[Part, ...]) -> None:
    for problem, part in _problems(parts):
        raise TemplateRefusedError(problem, line=part.first_line)


def _problems(parts: tuple[Part, ...]) -> Iterator[tuple[str, Part]]:
    for part in parts[1:]:
        if part.role == "system":
            yield "`# system:` comes first, and once. Move it to the top of the file.", part
    for part in parts:
        if not part.source:
            yield f"there is nothing under `# {part.role}:`. Write the message there, or remove the line.", part
    if parts[-1].role != "user":
        yield f"the last message is `# {parts[-1].role}:`; a model answers to `# user:`, so end with that", parts[-1]
