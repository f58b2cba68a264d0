"""Limits the memory of reading a Parquet file's row groups, from its metadata: how many rows to read at once.

A list of millions of equal values takes a few bytes in the file, and Parquet cannot read a part of a row.
"""

from __future__ import annotations

from typing import Any

from jobs.errors import InputError

MAX_UNPACKED_BYTES = 256 << 20
MAX_UNPACKED_TIMES = 64
"""Largest ratio of unpacked to packed bytes for a row group that exceeds MAX_UNPACKED_BYTES: texts have some 10."""

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 8}
_LEVEL_BYTES = 4
"""Two levels (repetition and definition) for a value of a list."""
_GROWTH = 2
"""Arrow doubles its buffer for the values of a row while reading; measured: 21 bytes for an integer of 8."""


def rows_at_once(name: str, parquet: Any, number: int, *, max_rows: int, max_bytes: int) -> int:
    """Return how many rows of a row group to read at once. Raise InputError if one of them may be too large."""
    group = parquet.metadata.row_group(number)
    columns = [(parquet.schema.column(index), group.column(index)) for index in range(group.num_columns)]
    listed = sum(_value_bytes(column) * chunk.num_values for column, chunk in columns if _is_list(column))
    packed = sum(chunk.total_compressed_size for _, chunk in columns)
    unpacked = listed * _GROWTH + sum(chunk.total_uncompressed_size for _, chunk in columns)
    if unpacked > max(MAX_UNPACKED_BYTES, packed * MAX_UNPACKED_TIMES):
        raise InputError(
            f"{name}, row group {number + 1}: its {packed:,} bytes would have {unpacked:,} unpacked. Write the file "
            f"with fewer rows in a group, so that each has at most {MAX_UNPACKED_BYTES:,} or {MAX_UNPACKED_TIMES} "
            "times what it has in the file.",
            code="invalid_source",
        )
    fixed = sum(column.length for column, _ in columns)
    each = fixed + listed // max(1, group.num_rows)
    return int(max(1, min(max_rows, max_bytes // max(1, each))))


def _is_list(column: Any) -> bool:
    return bool(column.max_repetition_level > 0)


def _value_bytes(column: Any) -> int:
    width = column.length if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS[column.physical_type]
    return int(width) + _LEVEL_BYTES
