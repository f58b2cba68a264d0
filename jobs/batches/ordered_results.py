"""The lines of a result file, taken in the order of the batch's input, in memory of a piece of the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from jobs.lines.reading import iter_lines
from jobs.settings import MIB
from jobs.storage import Storage

MAX_LINE_BYTES = 64 * MIB
"""Far above what a line may have."""


class OrderedResults:
    """A batch's output or error file. Its lines have the order of the input, as all files of one batch."""

    def __init__(self, storage: Storage, key: str | None) -> None:
        """`key` is None where the batch has no such file."""
        pieces = iter(()) if key is None else storage.iter_chunks(key)
        self._lines = iter_lines(pieces, max_line_bytes=MAX_LINE_BYTES)
        self._next = self._read()

    def take(self, custom_id: str) -> Mapping[str, Any] | None:
        """Return the next line if it is that of this request; None: it is another's, or there is none any more."""
        if self._next is None or self._next["custom_id"] != custom_id:
            return None
        taken, self._next = self._next, self._read()
        return taken

    def take_all(self, prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the next lines of requests whose custom_id begins so, each with the rest of that."""
        while self._next is not None and self._next["custom_id"].startswith(prefix):
            taken, self._next = self._next, self._read()
            yield taken["custom_id"].removeprefix(prefix), taken

    def _read(self) -> Mapping[str, Any] | None:
        line = next(self._lines, None)
        if line is None or line.content is None:
            return None
        found: Mapping[str, Any] = orjson.loads(line.content)
        return found
