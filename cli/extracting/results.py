"""The results of a stage's lines, found by their custom_id as long as they are asked for in the order of the lines."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

import orjson

from cli.places.ordered_results import OrderedResults
from cli.places.stage import ResultFiles
from features.documents.extraction.course.answers import LineResult, result_of


class Results:
    """A batch's two files side by side; for a `with` block."""

    def __init__(self, files: ResultFiles) -> None:
        self._closing = ExitStack()
        self._files = [OrderedResults(path, self._closing) for path in files.paths]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closing.close()

    def pop(self, custom_id: str) -> LineResult | None:
        """Return the result of a line, each once; None where there is no such line."""
        found = next((raw for file in self._files if (raw := file.pop(custom_id)) is not None), None)
        return None if found is None else result_of(orjson.loads(found))

    def pop_all(self, prefix: str) -> dict[str, LineResult]:
        """Return the results of the next lines whose custom_id begins so, by the rest of it."""
        found = {rest: raw for file in self._files for rest, raw in file.pop_all(prefix)}
        return {rest: result_of(orjson.loads(raw)) for rest, raw in found.items()}
