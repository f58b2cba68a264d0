"""Read a result file in the order of the batch's input, holding one piece of the file in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from jobs.errors import ServiceError
from jobs.lines.reading import RawLine, iter_lines
from jobs.settings import MIB
from jobs.storage import Storage

MAX_LINE_BYTES = 64 * MIB
"""A longer line is not held in memory: it counts as the error of its request."""

_UNREADABLE_CODE = "result_too_long"
_HEAD = re.compile(rb'{"id":"[^"]*","custom_id":("(?:[^"\\]|\\.)*"),')
"""Start of each line of a result file, as written by `jobs.lines.output_lines`."""
_HEAD_BYTES = 4096


class OrderedResults:
    """A batch's output or error file. Its lines follow the order of the input, like all files of one batch."""

    def __init__(self, storage: Storage, key: str | None) -> None:
        """`key` is None where the batch has no such file."""
        self._storage = storage
        self._key = key
        pieces = iter(()) if key is None else storage.iter_chunks(key)
        self._lines = iter_lines(pieces, max_line_bytes=MAX_LINE_BYTES)
        self._next = self._read()

    def take(self, custom_id: str) -> Mapping[str, Any] | None:
        """Return the next line if it belongs to this request; None where it belongs to another or there is none."""
        if self._next is None or self._next["custom_id"] != custom_id:
            return None
        line, self._next = self._next, self._read()
        return line

    def take_all(self, prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the next lines of requests whose custom_id has this prefix, each with the rest of the id."""
        while self._next is not None and self._next["custom_id"].startswith(prefix):
            line, self._next = self._next, self._read()
            yield line["custom_id"].removeprefix(prefix), line

    def _read(self) -> Mapping[str, Any] | None:
        line = next(self._lines, None)
        if line is None:
            return None
        if line.content is None:
            return self._too_long(line)
        result: Mapping[str, Any] = orjson.loads(line.content)
        return result

    def _too_long(self, line: RawLine) -> Mapping[str, Any]:
        """Return an error in place of a line that is too long to hold. Raises ServiceError where it is no result."""
        assert self._key is not None, "it has lines"
        end = min(line.byte_end, line.byte_start + _HEAD_BYTES)
        head = _HEAD.match(self._storage.read_range(self._key, line.byte_start, end))
        if head is None:
            raise ServiceError(f"line {line.line_no + 1} of {self._key!r} is longer than a line can be, and no result")
        message = f"its result has {line.byte_end - line.byte_start:,} bytes, and {MAX_LINE_BYTES:,} can be read"
        error = {"code": _UNREADABLE_CODE, "message": message}
        return {"custom_id": orjson.loads(head[1]), "response": None, "error": error}
