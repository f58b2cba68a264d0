"""Tests of rows as JSON: integers with all digits, times with all parts, and no silent conversions."""

from __future__ import annotations

import json
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tokenmill.row_json import dumps, loads

LONG = "123456789012345678901234567890"
NOON = "2026-01-02T12:00:00"


@pytest.mark.parametrize(
    "text",
    [
        LONG,
        f"-{LONG}",
        "18446744073709551616",
        "-9223372036854775809",
        "1" * 4300,
        f'{{"a":[{LONG},"{LONG}",1.5,null]}}',
    ],
)
def test_integers_are_read_and_written_with_all_their_digits(text: str) -> None:
    assert dumps(loads(text.encode())) == text.encode()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1" * 4301, "an integer has 4,301 digits; 4,300 are allowed"),
        (f"{LONG}e999", "number is infinity"),
        (f'["\\ud800", {LONG}]', "surrogate"),
        (f"[NaN, {LONG}]", "unexpected character"),
        (f"0{LONG}", "leading zero"),
        ("[" * 1000 + LONG + "]" * 1000, "nested too deeply"),
        ("1" * 400 + ".5", "is too large"),
    ],
)
def test_long_digits_make_nothing_json_that_is_none(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        loads(text.encode())


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (np.float64(1.5), 1.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([[1.5, np.nan, np.inf]]), [[1.5, None, "Infinity"]]),
        (np.array([1, 2, 3, 4])[::2], [1, 3]),
        (np.array(["a", None], dtype=object), ["a", None]),
        (np.array(["2026-01-02T12:00:00.123456789", "NaT"], dtype="datetime64[ns]"), [f"{NOON}.123456789", None]),
        (np.datetime64("NaT"), None),
        (pd.Timestamp(f"{NOON}.123456789", tz="Europe/Berlin"), f"{NOON}.123456789+01:00"),
        (pd.NaT, None),
        (pd.NA, None),
        (float("nan"), None),
        ({"a": (float("inf"), -float("inf"))}, {"a": ["Infinity", "-Infinity"]}),
        (Decimal("1.50"), "1.50"),
        (timedelta(seconds=1), "0:00:01"),
        (datetime(2026, 1, 2, 12, tzinfo=timezone(timedelta(hours=2))), f"{NOON}+02:00"),
        (time(12, tzinfo=UTC), "12:00:00+00:00"),
        ({1 << 70: b"\xff"}, {str(1 << 70): "ff"}),
    ],
    ids=repr,
)
def test_values_are_written_as_people_do(value: Any, written: Any) -> None:
    assert json.loads(dumps(value)) == written


@pytest.mark.parametrize(
    "value",
    [{1}, object(), 1j, np.longdouble(1), pd.Period("2026-01"), "\ud800"],
    ids=["set", "object", "complex", "longdouble", "period", "surrogate"],  # the same in every process of a run
)
def test_what_json_has_no_form_for_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        dumps({"a": [value, 1 << 70, None]})
