"""Tests of passing rows to another process with everything that a prompt can show of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tokenmill.carried_rows import read_rows, write_rows
from tokenmill.errors import InputError
from tokenmill.row_json import Unwritable
from tokenmill.tables import read_columns, write_columns


def carried(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    write_rows(folder / "rows", [row])
    (found,) = read_rows(folder / "rows")
    return found


def reason(value: Any) -> str:
    assert isinstance(value, Unwritable)
    return value.reason


@pytest.mark.parametrize(
    "row", [{}, {"a": None, "b": [1, {"c": 1.5}]}, {"a": 1 << 90}, {"!": "!"}, {"a": "é\n\u2028", "b": True}]
)
def test_rows_of_json_come_as_they_are(row: dict[str, Any], tmp_path: Path) -> None:
    assert carried(row, tmp_path) == row


def test_a_value_that_cannot_be_written_costs_no_other(tmp_path: Path) -> None:
    deep: Any = {1}
    for _ in range(20):
        deep = {"in": deep}
    row = {
        "a": "good",
        "set": {1},
        "in": {"bytes": b"x", "half": "\ud800", "n": 1 << 70},
        "list": [1, {2}],
        "deep": deep,
    }
    found = carried(row, tmp_path)
    assert (found["a"], found["in"]["n"], list(found)) == ("good", 1 << 70, list(row))
    assert [reason(found[name]) for name in ("set", "list")] == ["a value of type set"] * 2
    assert reason(found["in"]["bytes"]) == "bytes, which are no text"
    assert "surrogates" in reason(found["in"]["half"])


def test_a_name_that_cannot_be_written_is_refused_with_its_row(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="row 2"):
        write_rows(tmp_path / "rows", [{"a": 1}, {"\ud800": 1}])


def test_an_integer_of_too_many_digits_is_refused_with_its_row(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text('{"a": 1}\n{"a": ' + "1" * 4301 + "}\n")
    with pytest.raises(InputError, match="row 2"):
        list(read_rows(tmp_path / "rows"))


def test_columns_come_with_their_types_and_with_dictionaries_that_differ(tmp_path: Path) -> None:
    chunks = [pa.array([text]).dictionary_encode() for text in ("a", "b")]
    table = pa.table({"kind": pa.chunked_array(chunks), "at": pa.array([1, None], pa.timestamp("ns", "Europe/Berlin"))})
    write_columns(tmp_path / "columns", table)
    assert read_columns(tmp_path / "columns").equals(table)
