"""Search of a batch's lines for a text: in their custom_ids, answers and errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from features.lines.content import texts_of
from features.lines.reader import FoundLine, LineFilter, LineReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """What a search has found in its next part, and how far it is."""

    lines: tuple[FoundLine, ...]
    next_line: int
    """The first line number that was not searched."""
    num_bytes: int
    """Searched so far."""
    has_more: bool
    """Whether the search ended at its limit."""


def search(reader: LineReader, text: str, wanted: LineFilter, *, first_line: int, limit: int) -> Iterator[Hits]:
    """Yield the wanted lines that have a text, part by part, at most `limit` together.

    Capitals matter. The bytes of the files are searched, and only lines that contain those of the text are parsed.
    """
    needle = orjson.dumps(text)[1:-1]  # as it is in the files, which have no other escapes
    num_bytes = 0
    for part in reader.search(needle, wanted, first_line=first_line):
        num_bytes += part.num_bytes
        lines = tuple(line for line in part.lines if _has(line, text))
        if len(lines) > limit:
            yield Hits(lines=lines[:limit], next_line=lines[limit].line_no, num_bytes=num_bytes, has_more=True)
            return
        limit -= len(lines)
        yield Hits(lines=lines, next_line=part.next_line, num_bytes=num_bytes, has_more=False)


def _has(line: FoundLine, text: str) -> bool:
    """Return whether a text is in a line's values, and not in the names of their members."""
    result = orjson.loads(line.content)
    return text in (result["custom_id"] or "") or any(text in each for each in texts_of(result))
