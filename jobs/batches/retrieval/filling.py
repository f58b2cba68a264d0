"""Write the input as it is run: each line with its passages, under its number and custom_id.

The object is not referenced by any row yet. The unchanged parts of a line are copied as they are.
"""

from __future__ import annotations

import orjson

from jobs.batches.made_inputs import InputWriter
from jobs.batches.retrieval.asking import Line
from jobs.batches.retrieval.results import StageError, StageResults
from jobs.lines.body_context import ContextRequest, with_passages
from jobs.lines.passage_bodies import citations, shown_passages
from jobs.lines.reading import InputLine, LineProblem, RawLine

_NO_REQUEST = b"{}"  # in place of a line that is too long to be read


class Filling:
    """Receives the lines of an input in order and inserts the passages found for each."""

    def __init__(self, found: StageResults, writer: InputWriter) -> None:
        self._found = found
        self._writer = writer
        self._next_line = 0

    def skip(self, raw: RawLine) -> None:
        """Write a line that is not run: its number is kept."""
        self._write(raw.line_no, raw.content or _NO_REQUEST)

    def fill(self, line: InputLine, raw: RawLine, context: ContextRequest | None) -> Line:
        """Return a line with its passages and its new offset. Raises LineProblem where there are none."""
        assert raw.content is not None, "a line that is too long is skipped"
        if context is None:
            return self._write(raw.line_no, _without_context(raw.content)), line.body
        passages = self._found.take(line.custom_id)
        if isinstance(passages, StageError):
            self.skip(raw)
            message = f"no passages for its prompt: {passages.message}"
            raise LineProblem(
                passages.code, message, line_no=line.line_no, param="body.context", custom_id=line.custom_id
            )
        body = with_passages(line.body, shown_passages(passages))
        filled = orjson.loads(raw.content) | {"body": body, "context": citations(passages)}
        return self._write(raw.line_no, orjson.dumps(filled)), body

    def _write(self, line_no: int, content: bytes) -> RawLine:
        for _ in range(self._next_line, line_no):  # blank lines count
            self._writer.write(b"")
        self._next_line = line_no + 1
        start = self._writer.size_bytes
        self._writer.write(content)
        return RawLine(line_no, start, self._writer.size_bytes, content)


def _without_context(content: bytes) -> bytes:
    """Return a line without a `context` beside its body: there it would pass for passages that the service inserted."""
    if b'"context"' not in content:
        return content
    line = orjson.loads(content)
    if "context" not in line:
        return content
    del line["context"]
    return orjson.dumps(line)
