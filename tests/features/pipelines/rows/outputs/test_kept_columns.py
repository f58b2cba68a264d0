"""Tests of columns whose rows are kept as JSON meanwhile: types and values are restored."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import pyarrow as pa
import pytest

from features.pipelines.rows.arrow_values import row_values
from features.pipelines.rows.outputs.kept_columns import MAX_SCHEMA_BYTES, dumped, loaded, nullable, restorers
from features.pipelines.step_rows import StepRow, encode
from jobs.errors import InputError

BERLIN = ZoneInfo("Europe/Berlin")
HALF = timezone(timedelta(hours=5, minutes=30))


def kept(value: Any, kind: pa.DataType) -> Any:
    """Return a value of a column of this type after it was kept as JSON."""
    schema = pa.schema([pa.field("a", kind)])
    [given] = row_values(pa.record_batch([pa.array([value], kind)], schema))
    row = orjson.loads(encode(StepRow(custom_id="1", values=given, error=None)))["row"]
    restorer = restorers(schema).get("a", lambda same: same)
    return pa.array([restorer(row["a"])], kind)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("text", pa.large_string()),
        ("text", pa.dictionary(pa.int8(), pa.string())),
        (2**63, pa.uint64()),
        (1.5, pa.float32()),
        (float("-inf"), pa.float64()),
        (86_399_999_999_999, pa.time64("ns")),
        (True, pa.bool_()),
        (b"\x00\xff", pa.binary()),
        (b"abc", pa.binary(3)),
        (b"abc", pa.large_binary()),
        (date(1, 2, 3), pa.date32()),
        (time(23, 59, 59, 999_999), pa.time64("us")),
        (Decimal("-12345678901234567890.123"), pa.decimal128(38, 3)),
        (datetime(2026, 10, 25, 2, 30, 0, 1), pa.timestamp("us")),
        (datetime(1969, 12, 31, 23, 59, 59, 999_000), pa.timestamp("ms")),
        (datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN), pa.timestamp("us", tz="Europe/Berlin")),
        (datetime(2026, 1, 1, tzinfo=HALF), pa.timestamp("s", tz="+05:30")),
        (datetime(9999, 12, 31, tzinfo=UTC), pa.timestamp("us", tz="UTC")),
        (1_700_000_000_123_456_789, pa.timestamp("ns")),
        (-1, pa.timestamp("ns", tz="UTC")),
        (timedelta(days=2, hours=3, microseconds=7), pa.duration("us")),
        (timedelta(days=-1, seconds=3), pa.duration("s")),
        (timedelta(days=3), pa.duration("ms")),
        (5, pa.duration("ns")),
        (-5, pa.duration("ns")),
        (uuid.UUID(int=7), pa.uuid()),
        ([date(2026, 1, 1), None], pa.list_(pa.date32())),
        ([b"a", b"b"], pa.list_(pa.binary(), 2)),
        ({"day": date(2026, 1, 1), "n": None}, pa.struct({"day": pa.date32(), "n": pa.int8()})),
        ([("a", Decimal("1.5"))], pa.map_(pa.string(), pa.decimal128(5, 1))),
        ([{"at": [time(1, 2)]}], pa.large_list(pa.struct({"at": pa.list_(pa.time32("s"))}))),
    ],
    ids=str,
)
def test_values_of_any_type_come_back_as_they_were(value: Any, kind: pa.DataType) -> None:
    assert kept(value, kind).equals(pa.array([value], kind))


def test_columns_come_back_nullable_and_without_what_describes_them() -> None:
    inner = pa.struct([pa.field("x", pa.float64(), nullable=False, metadata={"a": "b"})])
    kinds = [
        inner,
        pa.list_(pa.field("item", inner, nullable=False)),
        pa.large_list(inner),
        pa.list_(inner, 2),
        pa.map_(pa.string(), inner),
    ]
    fields = [pa.field(f"c{number}", kind, nullable=False) for number, kind in enumerate(kinds)]
    back = loaded(dumped(nullable(pa.schema(fields, metadata={"pandas": "{}"}))))
    assert back.metadata is None
    assert [field.nullable for field in back] == [True] * len(kinds)
    plain = pa.struct([pa.field("x", pa.float64())])
    assert back.types == [
        plain,
        pa.list_(plain),
        pa.large_list(plain),
        pa.list_(plain, 2),
        pa.map_(pa.string(), plain),
    ]


def test_a_schema_that_is_too_large_to_keep_is_refused() -> None:
    schema = pa.schema([pa.field("x" * (MAX_SCHEMA_BYTES // 2) + str(number), pa.int8()) for number in range(3)])
    with pytest.raises(InputError, match=r"of the columns take .* bytes and 4,194,304 are allowed"):
        dumped(schema)
