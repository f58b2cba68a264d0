"""The answers about a document in the result lines of its questions, found by their custom_ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from features.documents.extraction.course.job import custom_id
from features.documents.extraction.course.line_results import LineResult, result_of


def first(lines: Mapping[str, Any], number: int, *, num_groups: int) -> Sequence[LineResult]:
    """Return the answer for each group of fields of document `number`, or nothing unless all have one."""
    found = [lines.get(custom_id(number, group)) for group in range(num_groups)]
    return [result_of(line) for line in found if line is not None] if all(found) else ()


def second_readings(lines: Mapping[str, Any], number: int, *, num_groups: int) -> dict[int, LineResult]:
    """Return the second readings among the same lines, by group."""
    found = ((group, lines.get(custom_id(number, group, is_second_reading=True))) for group in range(num_groups))
    return {group: result_of(line) for group, line in found if line is not None}


def of_round(lines: Mapping[str, Any], number: int) -> dict[str, LineResult]:
    """Return the results of a round's questions by question key."""
    prefix = custom_id(number, "")
    return {name.removeprefix(prefix): result_of(line) for name, line in lines.items()}
