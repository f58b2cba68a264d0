"""The results of a stage's lines by custom_id, read in the order of the lines."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

import orjson

from cli.places.ordered_results import OrderedResults
from cli.places.stage import ResultFiles
from features.documents.extraction.course.line_results import LineResult, result_of


class Results:
    """The two result files of a batch; for a `with` block."""

    def __init__(self, files: ResultFiles) -> None:
        self._closing = ExitStack()
        self._files = [OrderedResults(path, self._closing) for path in files.paths]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closing.close()

    def pop(self, custom_id: str) -> LineResult | None:
        """Return the result of a line, each once; None if there is no such line."""
        raw_result = next((raw for file in self._files if (raw := file.pop(custom_id)) is not None), None)
        return None if raw_result is None else result_of(orjson.loads(raw_result))

    def pop_all(self, prefix: str) -> dict[str, LineResult]:
        """Return the next results whose custom_id starts with `prefix`, by the rest of the custom_id."""
        results = {rest: raw for file in self._files for rest, raw in file.pop_all(prefix)}
        return {rest: result_of(orjson.loads(raw)) for rest, raw in results.items()}
