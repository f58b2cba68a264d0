"""Joins the results of a batch to their rows, in the order of the source; every row appears once.

It merges the source with the rows that became no line and with the results, which all have the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from features.pipelines.rows.lines.requests import UnrenderedRow, index_of
from features.pipelines.rows.lines.table_shape import Shape
from features.pipelines.rows.outputs.answer_columns import Answer, answer_of
from features.pipelines.rows.sources.source import Source
from jobs.errors import ServiceError


def joined_rows(
    source: Source, shape: Shape, *, unrendered: Iterable[UnrenderedRow], results: Iterable[Iterable[bytes]]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of an output; each of `results` has the lines of an output or error file, in line order.

    Raise ServiceError if a row that became a line has no result.
    """
    skipped = ((row.index, Answer(values={}, error=row.error)) for row in unrendered)
    streams = [_Answers(skipped), *(_Answers(_answered(lines, shape)) for lines in results)]
    for index, row in enumerate(source.read(), start=1):
        answer = next((answer for answers in streams if (answer := answers.pop(index)) is not None), None)
        if answer is None:
            raise ServiceError(f"the results have no line for row {index:,} of {source.description}")
        yield shape.row(row.values, answer.values, answer.error)


class _Answers:
    """Answers in the order of their rows, each returned once."""

    def __init__(self, answers: Iterator[tuple[int, Answer]]) -> None:
        self._answers = answers
        self._next = next(answers, None)

    def pop(self, index: int) -> Answer | None:
        """Return the answer for a row, if the next one is for it."""
        if self._next is None or self._next[0] != index:
            return None
        answer, self._next = self._next[1], next(self._answers, None)
        return answer


def _answered(lines: Iterable[bytes], shape: Shape) -> Iterator[tuple[int, Answer]]:
    for raw in lines:
        line = orjson.loads(raw)
        if (index := index_of(line.get("custom_id"))) is not None:
            yield index, answer_of(line, shape.answer, has_thoughts=shape.has_thoughts)
