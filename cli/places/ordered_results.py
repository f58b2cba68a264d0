"""Results of lines in the order of the lines, each given away once: nothing is held in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import orjson

from jobs.errors import ServiceError


class OrderedResults:
    """The results of one file that are not errors of the codes `without`; open until `closing` ends."""

    def __init__(self, path: Path, closing: ExitStack, *, without: Collection[str] = ()) -> None:
        self._path = path
        self._results = _named(closing.enter_context(path.open("rb")), without)
        self._next = next(self._results, None)

    def pop(self, custom_id: str) -> bytes | None:
        """Return the result of a line, if the next one is its."""
        if self._next is None or self._next[0] != custom_id:
            return None
        result, self._next = self._next[1], next(self._results, None)
        return result

    def pop_all(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Yield the next results whose custom_id begins so, each with the rest of it."""
        while self._next is not None and self._next[0].startswith(prefix):
            (custom_id, result), self._next = self._next, next(self._results, None)
            yield custom_id.removeprefix(prefix), result

    def require_end(self) -> None:
        """Raise ServiceError where one is left: nobody asked for it, or it came in another order than the lines."""
        if self._next is not None:
            raise ServiceError(
                f"{self._path} has a result for {self._next[0]!r} that is not in the order of the lines, or of no line "
                "that was asked. Remove the folder of that file to begin anew."
            )


def _named(file: BinaryIO, without: Collection[str]) -> Iterator[tuple[str, bytes]]:
    for raw in file:
        line = orjson.loads(raw)
        if (line.get("error") or {}).get("code") not in without:
            yield str(line.get("custom_id")), raw
