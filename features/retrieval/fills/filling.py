"""Write the input as it is run: each line with its passages, under its number and custom_id.

The object is not referenced by any row yet. The unchanged parts of a line are copied as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from features.retrieval.fills.results import Answers, NoAnswer
from jobs.batches.made_inputs import InputWriter
from jobs.lines.body_context import with_passages
from jobs.lines.filled_lines import UNAVAILABLE, unfilled, unmarked
from jobs.lines.passage_bodies import citations, shown_passages
from jobs.lines.reading import MARK, InputLine, RawLine

_NOT_FOUND = NoAnswer(code=UNAVAILABLE, message="no search was made")


class Filling:
    """Receives the lines of an input in order and inserts the passages found for each."""

    def __init__(
        self,
        writer: InputWriter,
        found: Answers | None,
        *,
        pieces_of: Callable[[RawLine], Iterable[bytes]],
        max_line_bytes: int,
    ) -> None:
        """`pieces_of` reads a line that is too long to be held; `found` is None where nothing was searched."""
        self._writer = writer
        self._found = found
        self._pieces_of = pieces_of
        self._max_line_bytes = max_line_bytes
        self._next_line = 0

    def copy(self, raw: RawLine) -> None:
        """Write a line that wants no passages, or is not run."""
        self._skip_blank(raw.line_no)
        if raw.content is None:
            self._writer.write_pieces(self._pieces_of(raw))
        else:
            self._writer.write(unmarked(raw.content))

    def fill(self, raw: RawLine, line: InputLine) -> None:
        """Write a line with its passages, or why it has none."""
        assert raw.content is not None, "a line that is too long is copied"
        found = _NOT_FOUND if self._found is None else self._found.take(line.custom_id)
        filled = found if isinstance(found, NoAnswer) else self._filled(raw.content, line, found)
        if isinstance(filled, NoAnswer):
            message = f"no passages for its prompt: {filled.message}"
            filled = unfilled(line.custom_id, code=filled.code, message=message)
        self._skip_blank(raw.line_no)
        self._writer.write(filled)

    def _filled(self, content: bytes, line: InputLine, found: Mapping[str, Any]) -> bytes | NoAnswer:
        body = with_passages(line.body, shown_passages(found))
        try:
            filled = orjson.dumps(orjson.loads(content) | {"body": body, MARK: citations(found)})
        except orjson.JSONEncodeError:
            return NoAnswer(code="invalid_request", message="the line is nested too deeply to be written with passages")
        if len(filled) > self._max_line_bytes:
            message = f"with them the line has {len(filled):,} bytes, and {self._max_line_bytes:,} are allowed"
            return NoAnswer(code="context_length_exceeded", message=message)
        return filled

    def _skip_blank(self, line_no: int) -> None:
        for _ in range(self._next_line, line_no):  # blank lines count
            self._writer.write(b"")
        self._next_line = line_no + 1
