"""Tests of CSV files as spreadsheets of several countries write them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from features.pipelines.rows.sources.csv_dialects import SAMPLE_BYTES, dialect_of
from features.pipelines.rows.sources.reading import open_source
from jobs.errors import InputError

ROWS = [{"name": "José", "price": "1,50"}, {"name": "Ana; B", "price": "2,00"}]


def written(separator: str) -> str:
    quoted = [f'"{row["name"]}"{separator}"{row["price"]}"\n' for row in ROWS]
    return f"name{separator}price\n" + "".join(quoted)


def read(path: Path) -> list[dict[str, str]]:
    return [dict(row.values) for row in open_source(str(path)).read()]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1", "cp1252"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_and_encodings_are_found(tmp_path: Path, separator: str, encoding: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(written(separator).encode(encoding))
    assert read(path) == ROWS
    is_usual = separator == "," and encoding in ("utf-8", "utf-8-sig")
    assert len(open_source(str(path)).notes) == (0 if is_usual else 1)


def test_decimal_commas_without_quotes_leave_the_semicolon(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("name;price\nA;1,50\nB;2\n")
    assert read(path) == [{"name": "A", "price": "1,50"}, {"name": "B", "price": "2"}]


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("text\nhello; you\nand, you\n", ["text"]),  # one column of free text
        ("a,b;c\n1,2;3\n", ["a", "b;c"]),  # both divide all rows: the comma goes first
        ('"a;b",c\n"1\n2;3",4\n', ["a;b", "c"]),
        ("", None),
    ],
)
def test_a_separator_divides_all_rows_alike(tmp_path: Path, content: str, columns: list[str] | None) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content)
    if columns is None:
        with pytest.raises(InputError):
            open_source(str(path))
        return
    assert open_source(str(path)).columns == columns


def test_a_tsv_has_tabs_even_with_one_column(tmp_path: Path) -> None:
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"text,more\n1,2\n"))
    assert read(tmp_path / "a.tsv.gz") == [{"text,more": "1,2"}]


def test_damaged_utf_8_is_no_other_encoding(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("name,text\nJosé,é\n".encode() + b"A,\xff\n")
    with pytest.raises(InputError, match=r"row 2 \(line 3\).*UTF-8") as caught:
        read(path)
    assert caught.value.code == "invalid_source"


def test_a_character_cut_by_the_end_of_the_sample_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    row = "é" * 1000
    path.write_text("text\n" + f"{row}\n" * (SAMPLE_BYTES // 1000))
    assert path.read_bytes()[SAMPLE_BYTES - 1 : SAMPLE_BYTES + 1].startswith((b"\xc3\xa9", b"\xa9"))
    assert {each["text"] for each in read(path)} == {row}


def test_a_file_that_stops_being_utf_8_behind_the_sample_is_refused_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text\n" + b"a\n" * SAMPLE_BYTES + b"\xe9\n")
    with pytest.raises(InputError, match=f"row {SAMPLE_BYTES + 1} ") as caught:
        read(path)
    assert caught.value.code == "invalid_source"


@pytest.mark.parametrize("num_rows", [1, 60])
def test_texts_of_many_lines_that_the_sample_cuts_are_whole(tmp_path: Path, num_rows: int) -> None:
    text = "line\n" * (SAMPLE_BYTES // 5 // min(num_rows, 20))
    path = tmp_path / "a.csv"
    path.write_text("id;text\n" + "".join(f'{number};"{text}"\n' for number in range(num_rows)))
    assert [row["id"] for row in read(path)] == [str(number) for number in range(num_rows)]


def test_of_two_separators_that_divide_alike_that_of_more_fields_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("Name;Preis, netto;Zahl\nA;1,50;2\nB;2,30;4\n")
    assert open_source(str(path)).columns == ["Name", "Preis, netto", "Zahl"]


@pytest.mark.parametrize(
    ("text", "encoding"), [("имя,текст\nАня,привет\n", "cp1251"), ("名前,本文\n日本語,本文\n", "shift_jis")]
)
def test_texts_of_other_scripts_are_not_taken_for_western_ones(tmp_path: Path, text: str, encoding: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode(encoding))
    with pytest.raises(InputError, match=r"row 0 \(line 1\).*UTF-8") as caught:
        open_source(str(path))
    assert caught.value.code == "invalid_source"


def test_an_encoding_is_guessed_only_where_the_notes_are_shown() -> None:
    sample = "name\nJosé\n".encode("latin-1")
    guessed, unguessed = (dialect_of(sample, name="a.csv", may_guess=may_guess) for may_guess in (True, False))
    assert (guessed.encoding_name, unguessed.encoding_name) == ("Windows-1252", "UTF-8")
