"""Converts values of Arrow columns to Python without loss: values with nanoseconds stay Arrow scalars."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jobs.errors import InputError
from tokenmill.arrow_scalars import is_finer_than_python, python_value
from tokenmill.packages import needed


def row_values(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a RecordBatch. Raise InputError with the column's name if Python has no such value."""
    names = batch.schema.names
    columns = [_column(name, batch.column(index)) for index, name in enumerate(names)]
    for values in zip(*columns, strict=True) if columns else iter([()] * batch.num_rows):
        yield dict(zip(names, values, strict=True))


def _column(name: str, column: Any) -> list[Any]:
    try:
        return [_value(scalar) for scalar in column] if _has_nanoseconds(column.type) else column.to_pylist()
    except (ValueError, OverflowError) as error:  # such as a day after the year 9999
        kind = getattr(column.type, "value_type", column.type) if hasattr(column, "indices") else column.type
        reason = str(error).splitlines()[0]
        raise InputError(
            f"column {name!r} of type {kind} has a value that cannot be read: {reason}. Leave it out, or make it a "
            "column of texts.",
            code="invalid_source",
        ) from None


def _has_nanoseconds(kind: Any) -> bool:
    if getattr(kind, "unit", None) == "ns":
        return True
    inner = [kind.field(index).type for index in range(kind.num_fields)]
    storage = [getattr(kind, name) for name in ("value_type", "storage_type") if hasattr(kind, name)]
    return any(map(_has_nanoseconds, [*inner, *storage]))


def _value(scalar: Any) -> Any:
    arrow = needed("pyarrow", by="a table with types")
    if not scalar.is_valid:
        return None
    if isinstance(scalar, arrow.TimestampScalar | arrow.Time64Scalar | arrow.DurationScalar):
        value, rest = python_value(scalar) if is_finer_than_python(scalar) else (scalar.as_py(), 0)
        return scalar if rest else value
    if isinstance(scalar, arrow.StructScalar):
        return {name: _value(one) for name, one in scalar.items()}
    return _value_in_parts(scalar)


def _value_in_parts(scalar: Any) -> Any:
    arrow = needed("pyarrow", by="a table with types")
    if isinstance(scalar, arrow.DictionaryScalar):
        return _value(scalar.value)
    if isinstance(scalar, arrow.MapScalar):
        return [(_value(pair["key"]), _value(pair["value"])) for pair in scalar.values]
    if isinstance(scalar, arrow.ListScalar | arrow.LargeListScalar | arrow.FixedSizeListScalar):
        return [_value(one) for one in scalar.values]
    return scalar.as_py()
