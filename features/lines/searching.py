"""Search of a batch's lines for a text: in their custom_ids, answers and errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from features.lines.content import texts_of
from features.lines.reader import FoundLine, LineFilter, LineReader

_NAME = re.compile(rb"\w+")


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


class Wanted:
    """A text in lines of result files: as bytes, and as what people read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.needle = orjson.dumps(text)[1:-1]  # as it is in the files, which have no other escapes
        is_name = _NAME.fullmatch(self.needle) is not None
        self._in_name = re.compile(re.escape(self.needle) + rb'\w*":') if is_name else None

    def is_in(self, line: bytes) -> bool:
        """Return whether the text is in a line's custom_id, answer or error, and not in the names of members alone.

        A line where it is in names alone need not be parsed: a text such as "index" is in the names of each line.
        """
        if self._in_name is not None and len(self._in_name.findall(line)) == line.count(self.needle):
            return False
        result = orjson.loads(line)
        return self.text in (result["custom_id"] or "") or any(self.text in each for each in texts_of(result))


def search(reader: LineReader, text: str, wanted: LineFilter, *, first_line: int, limit: int) -> Iterator[Hits]:
    """Yield the wanted lines that have a text, part by part, at most `limit` together.

    Capitals matter. The bytes of the files are searched, and only lines that contain those of the text are parsed.
    """
    found = Wanted(text)
    num_bytes = 0
    for part in reader.search(found.needle, wanted, first_line=first_line):
        num_bytes += part.num_bytes
        lines = tuple(line for line in part.lines if found.is_in(line.content))
        if len(lines) > limit:
            yield Hits(lines=lines[:limit], next_line=lines[limit].line_no, num_bytes=num_bytes, has_more=True)
            return
        limit -= len(lines)
        yield Hits(lines=lines, next_line=part.next_line, num_bytes=num_bytes, has_more=False)
