"""Reads results in the order of their lines, each once: nothing is held in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import orjson

from jobs.errors import ServiceError


class OrderedResults:
    """The results of a file, except errors with the codes `without`; `name` is that of the file in errors."""

    def __init__(self, lines: Iterable[bytes], *, name: str, without: Collection[str] = ()) -> None:
        self._name = name
        self._results = _named(lines, without)
        self._next = next(self._results, None)

    def pop(self, custom_id: str) -> bytes | None:
        """Return the next result if it belongs to this line, otherwise None."""
        if self._next is None or self._next[0] != custom_id:
            return None
        result, self._next = self._next[1], next(self._results, None)
        return result

    def require_end(self) -> None:
        """Raise ServiceError if a result is left: it is of no line, or not in the order of the lines."""
        if self._next is not None:
            raise ServiceError(
                f"{self._name} has a result for {self._next[0]!r} that is out of order, or belongs to no line. "
                "Remove that file to start again."
            )


def _named(lines: Iterable[bytes], without: Collection[str]) -> Iterator[tuple[str, bytes]]:
    for raw in lines:
        line = orjson.loads(raw)
        if (line.get("error") or {}).get("code") not in without:
            yield str(line.get("custom_id")), raw
