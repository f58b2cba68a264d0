"""Tests of the sources of `tokenmill map` that pipelines do not have: workbooks and standard input."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
import xlsxwriter

from cli.mapping.source import map_source
from cli.service.options import json_params
from jobs.errors import InputError
from protocol.sampling import API_RANGES


def workbook(path: Path, *sheets: list[list[Any]]) -> Path:
    with xlsxwriter.Workbook(path, {"default_date_format": "yyyy-mm-dd"}) as book:
        for cells in sheets:
            sheet = book.add_worksheet()
            for number, row in enumerate(cells):
                sheet.write_row(number, 0, row)
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return [dict(row.values) for row in map_source(str(path), stdin_copy=None).read()]


def test_a_workbook_has_the_rows_of_its_only_sheet_with_cells(tmp_path: Path) -> None:
    day = datetime.date(2026, 3, 4)
    path = workbook(tmp_path / "a.xlsx", [], [["name", "n", "day"], ["José", 1, day], [], ["B", 2.5, ""]])
    assert rows(path) == [
        {"name": "José", "n": "1", "day": "2026-03-04"},
        {"name": "B", "n": "2.5", "day": ""},
    ]
    source = map_source(str(path), stdin_copy=None)
    assert (source.columns, len(source.notes)) == (["name", "n", "day"], 1)


@pytest.mark.parametrize(
    "sheets",
    [[[["a"], [1]], [["b"], [2]]], [[["a", "a"], [1, 2]]], [[["a", "", "b"], [1, 2, 3]]], [[]]],
    ids=["two sheets", "one name twice", "no name", "no cells"],
)
def test_what_is_not_one_table_is_refused(tmp_path: Path, sheets: list[list[list[Any]]]) -> None:
    with pytest.raises(InputError):
        map_source(str(workbook(tmp_path / "a.xlsx", *sheets)), stdin_copy=None)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no zip", None])
def test_a_workbook_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.xlsx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.xlsx"):
        map_source(str(path), stdin_copy=None)


def test_standard_input_is_found_again_by_its_content(tmp_path: Path) -> None:
    copies = [tmp_path / name for name in ("1", "2", "3")]
    for copy, text in zip(copies, ("a", "a", "b"), strict=True):
        copy.write_text(f'{{"text": "{text}"}}\n')
    sources = [map_source("-", stdin_copy=copy) for copy in copies]
    assert [dict(row.values) for row in sources[0].read()] == [{"text": "a"}]
    first, second, third = (source.identity() for source in sources)
    assert first == second != third


@pytest.mark.parametrize(
    ("param", "is_allowed"),
    [
        ("top_p=1.5", False),
        ("top_p=1", True),
        ("temperature=2.5", False),
        ("n=0", False),
        ("min_p=-0.1", False),
        ("logprobs=true", True),
        ("seed=7", True),
    ],
)
def test_a_parameter_out_of_range_is_refused_as_the_option(param: str, *, is_allowed: bool) -> None:
    name, _, _ = param.partition("=")
    if is_allowed:
        assert name in json_params(max_tokens=None, temperature=None, others=[param])
        return
    with pytest.raises(InputError) as caught:
        json_params(max_tokens=None, temperature=None, others=[param])
    assert f"--param {name} " in caught.value.message
    assert str(API_RANGES[name]) in caught.value.message
