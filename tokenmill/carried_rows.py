"""Transfer of rows between a user's process and ours, a line each: values for prompts, and reasons for lost ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from tokenmill.errors import InputError
from tokenmill.row_json import Unwritable, as_shown, dumps, loads

_REASON = b"!"
"""Marks a line with values that could not be written."""
_LEVELS = 8
"""Depth of nested objects in a row whose values are written one by one where not all can be written."""


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows whose values may be of any type. Raises InputError where a column's name is not text."""
    with path.open("wb") as file:
        for number, row in enumerate(rows, start=1):
            file.write(_line(dict(row), number=number) + b"\n")


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows, with `Unwritable` for each value that could not be written. Raises InputError."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield _row(line)
            except ValueError as error:  # an integer with more digits than Python parses by default
                raise InputError(f"row {number} of the table cannot be read: {error}") from None


def _line(row: dict[str, Any], *, number: int) -> bytes:
    try:
        return dumps(row, default=as_shown)
    except TypeError:
        reasons: list[tuple[list[str], str]] = []
        row_json = _written(row, [], reasons)
    try:
        return _REASON + dumps([row_json, reasons])
    except TypeError as error:
        raise InputError(f"row {number} has a column whose name cannot be written: {error}") from None


def _written(values: Mapping[Any, Any], path: list[str], reasons: list[tuple[list[str], str]]) -> dict[Any, Any]:
    """Return values with None for each that cannot be written; append its path and reason to `reasons`."""
    result: dict[Any, Any] = {}
    for name, value in values.items():
        result[name] = None
        place = [*path, name]
        try:
            result[name] = orjson.Fragment(dumps(value, default=as_shown))
        except TypeError as error:
            if isinstance(value, dict) and all(isinstance(key, str) for key in value) and len(place) < _LEVELS:
                result[name] = _written(value, place, reasons)
            else:
                reasons.append((place, str(error.__cause__ or error)))
    return result


def _row(line: bytes) -> dict[str, Any]:
    if not line.startswith(_REASON):
        row: dict[str, Any] = loads(line)
        return row
    row, reasons = loads(line.removeprefix(_REASON))
    for (*outer, name), reason in reasons:
        values = row
        for key in outer:
            values = values[key]
        values[name] = Unwritable(reason)
    return row
