"""Arrow columns whose rows are stored as JSON in between: serialises their types and restores their values."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from jobs.errors import InputError
from tokenmill.packages import needed

MAX_SCHEMA_BYTES = 4 << 20
_PARTS_A_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FRACTION = re.compile(r"\.(\d+)")
_DURATION = re.compile(r"(?:(-?\d+) days?,? ?)?\+?(?:(\d+):(\d\d):(\d\d)(?:\.(\d+))?)?")

Restorer = Callable[[Any], Any]
"""Restores a value that is not null."""


def dumped(schema: Any) -> bytes:
    """Return a serialised pyarrow.Schema. Raise InputError if it is too large to store."""
    content = bytes(schema.serialize().to_pybytes())
    if len(content) > MAX_SCHEMA_BYTES:
        raise InputError(
            f"the names and types of the columns take {len(content):,} bytes and {MAX_SCHEMA_BYTES:,} are allowed. "
            "Put values under one name.",
            code="invalid_source",
        )
    return content


def loaded(content: bytes) -> Any:
    """Return the schema that `dumped` wrote."""
    arrow = needed("pyarrow", by="writing Parquet")
    return arrow.ipc.read_schema(arrow.py_buffer(content))


def nullable(schema: Any) -> Any:
    """Return the same columns as nullable and without metadata, as JSON has no NaN."""
    arrow = needed("pyarrow", by="writing Parquet")
    return arrow.schema([arrow.field(field.name, _nullable(field.type)) for field in schema])


def _nullable(kind: Any) -> Any:
    arrow = needed("pyarrow", by="writing Parquet")
    types = arrow.types
    if types.is_struct(kind):
        return arrow.struct([arrow.field(part.name, _nullable(part.type)) for part in kind])
    if types.is_map(kind):
        return arrow.map_(kind.key_type, _nullable(kind.item_type))
    if types.is_fixed_size_list(kind):
        return arrow.list_(_nullable(kind.value_type), kind.list_size)
    if types.is_large_list(kind):
        return arrow.large_list(_nullable(kind.value_type))
    return arrow.list_(_nullable(kind.value_type)) if types.is_list(kind) else kind


def restorers(schema: Any) -> Mapping[str, Restorer]:
    """Return the restorers of columns whose values JSON cannot represent."""
    by_name = ((field.name, _restorer(field.type)) for field in schema)
    return {name: restorer for name, restorer in by_name if restorer is not None}


def _restorer(kind: Any) -> Restorer | None:
    types = needed("pyarrow", by="writing Parquet").types
    if types.is_dictionary(kind):
        return _restorer(kind.value_type)
    if types.is_struct(kind):
        return _of_struct(restorers(kind))
    if types.is_map(kind):
        return _of_map(_restorer(kind.key_type), _restorer(kind.item_type))
    if types.is_nested(kind):
        return _of_list(_restorer(kind.value_type))
    return _plain_restorer(kind, types)


def _plain_restorer(kind: Any, types: Any) -> Restorer | None:
    if types.is_timestamp(kind):
        return lambda text: _moment(text, _PARTS_A_SECOND[kind.unit])
    if types.is_duration(kind):
        return lambda text: _duration(text, _PARTS_A_SECOND[kind.unit])
    if types.is_time(kind):
        return lambda text: _moment(f"1970-01-01T{text}", _PARTS_A_SECOND[kind.unit])
    if str(kind) == "extension<arrow.uuid>":
        return uuid.UUID
    restored_by: list[tuple[Callable[[Any], bool], Restorer]] = [
        (types.is_binary, bytes.fromhex),
        (types.is_large_binary, bytes.fromhex),
        (types.is_fixed_size_binary, bytes.fromhex),
        (types.is_binary_view, bytes.fromhex),
        (types.is_date, date.fromisoformat),
        (types.is_floating, lambda value: float(value) if isinstance(value, str) else value),  # text for Infinity
        (types.is_decimal, Decimal),
    ]
    return next((restorer for is_one, restorer in restored_by if is_one(kind)), None)


def _of_struct(parts: Mapping[str, Restorer]) -> Restorer | None:
    if not parts:
        return None
    return lambda value: {name: _restored(parts.get(name), part) for name, part in value.items()}


def _of_map(key: Restorer | None, item: Restorer | None) -> Restorer:
    return lambda pairs: [(_restored(key, name), _restored(item, value)) for name, value in pairs]


def _of_list(item: Restorer | None) -> Restorer | None:
    return None if item is None else lambda values: [_restored(item, value) for value in values]


def _restored(restorer: Restorer | None, value: Any) -> Any:
    return value if value is None or restorer is None else restorer(value)


def _moment(text: str, parts_a_second: int) -> int:
    """Return a time as a number in its column's unit, as a datetime has no nanoseconds."""
    moment = datetime.fromisoformat(_FRACTION.sub("", text))
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    seconds = (aware - datetime(1970, 1, 1, tzinfo=UTC)) // (datetime.resolution * 10**6)
    fraction = _FRACTION.search(text)
    return seconds * parts_a_second + _fraction(fraction[1] if fraction else "", parts_a_second)


def _duration(text: str, parts_a_second: int) -> int:
    match = _DURATION.fullmatch(text)
    assert match is not None, "it was written by str()"
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[:4])
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return whole * parts_a_second + _fraction(match[5] or "", parts_a_second)


def _fraction(digits: str, parts_a_second: int) -> int:
    return int(digits.ljust(9, "0")[:9]) * parts_a_second // 10**9
