"""Tests of tables: complete ids in a terminal of any width, tabs and a header in a pipe."""

from __future__ import annotations

import io
import json
import re
import sys
import time
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from types import SimpleNamespace

import pytest

from cli.batches.table import print_batches
from cli.table import age, print_fields, print_table

ID = "batch_" + "0123456789abcdef" * 2
HEADER = ("id", "status", "done", "failed", "total", "created")
ROW = (ID, "in_progress", 12, 0, 200, "2026-11-21T15:57:10Z")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def as_terminal(monkeypatch: pytest.MonkeyPatch, *, columns: int) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    return terminal


def shown_in_terminal(monkeypatch: pytest.MonkeyPatch, *, columns: int) -> list[str]:
    """Return the lines of the table in a terminal of this width."""
    terminal = as_terminal(monkeypatch, columns=columns)
    print_table(HEADER, [ROW])
    return terminal.getvalue().splitlines()


@pytest.mark.parametrize("columns", [80, 60, 40])
def test_an_id_stays_whole_where_the_table_is_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    lines = shown_in_terminal(monkeypatch, columns=columns)
    assert any(ID in line for line in lines)
    assert "…" not in "".join(lines)


def test_at_80_columns_only_the_time_takes_a_second_line(monkeypatch: pytest.MonkeyPatch) -> None:
    _, first, second = shown_in_terminal(monkeypatch, columns=80)
    assert first.split()[:5] == [ID, "in_progress", "12", "0", "200"]
    assert first.split()[5] + second.strip() == "2026-11-21T15:57:10Z"
    assert len(first) <= 80


def test_numbers_have_separators_for_people_and_none_for_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    header, row = ("id", "bytes", "name"), ("file_1", 1234567, "2024")
    print_table(header, [row], numbers=("bytes",))
    assert capsys.readouterr().out == "id\tbytes\tname\nfile_1\t1234567\t2024\n"
    terminal = as_terminal(monkeypatch, columns=80)
    print_table(header, [row], numbers=("bytes",))
    assert terminal.getvalue().splitlines()[1].split() == ["file_1", "1,234,567", "2024"]


def test_a_time_is_utc_to_the_second_as_those_of_batches_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    moment = datetime(2026, 11, 23, 22, 14, 49, 704008, tzinfo=timezone(timedelta(hours=1)))
    print_table(("id", "started", "ended"), [("a", moment, None)])
    assert capsys.readouterr().out == "id\tstarted\tended\na\t2026-11-23T21:14:49Z\t\n"
    terminal = as_terminal(monkeypatch, columns=80)
    print_table(("id", "started"), [("a", moment)])
    assert "2026-11-23T21:14:49Z" in terminal.getvalue()


def test_a_long_field_goes_on_below_its_beginning_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {"id": 1, "basis": "No worker was measured yet."}
    print_fields(fields)
    assert capsys.readouterr().out == "id     1\nbasis  No worker was measured yet.\n"
    terminal = as_terminal(monkeypatch, columns=25)
    print_fields(fields)
    assert terminal.getvalue() == "id     1\nbasis  No worker was\n       measured yet.\n"


def test_a_pipe_gets_the_header_too_also_without_rows(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(HEADER, [ROW])
    print_table(HEADER, [])
    header = "id\tstatus\tdone\tfailed\ttotal\tcreated\n"
    assert capsys.readouterr().out == f"{header}{ID}\tin_progress\t12\t0\t200\t2026-11-21T15:57:10Z\n{header}"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3_599, "59 min"), (7_200, "2 h"), (999_999, "11 d")],
)
def test_an_age_has_one_unit(seconds: int, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.table.time.time", lambda: 1_700_000_000.9)
    assert age(1_700_000_000 - seconds) == shown


def test_a_column_of_sentences_stands_below_the_table_in_a_terminal_and_in_its_place_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(ID, "failed", 12, 0, 200, "the store is full"), (ID[:-1] + "0", "completed", 1, 0, 1, None)]
    header = (*HEADER[:-1], "reason")
    print_table(header, rows, below="reason")
    assert capsys.readouterr().out.splitlines()[:2] == ["\t".join(header), "\t".join(map(str, rows[0]))]
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    print_table(header, rows, below="reason")
    shown = terminal.getvalue().splitlines()
    assert len(shown) == 4
    assert "reason" not in shown[0]
    assert shown[3] == f"{ID}: the store is full"


def batch(status: str, completed: int, failed: int, total: int) -> SimpleNamespace:
    counts = SimpleNamespace(completed=completed, failed=failed, total=total)
    created_at = int(time.time()) - 59 * 60
    return SimpleNamespace(
        id=ID, status=status, request_counts=counts, created_at=created_at, cost="0.000123", currency="USD"
    )


@pytest.mark.parametrize("columns", [80, 200])
def test_a_list_of_batches_tells_when_those_end_of_which_that_is_known(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    known = batch("in_progress", 10, 0, 100)
    known.eta, known.eta_earliest, known.eta_latest = (int(time.time()) + seconds for seconds in (250, 190, 310))
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    print_batches([known, batch("completed", 400, 0, 400)])
    shown = re.sub(r"\x1b\[\d*m", "", terminal.getvalue())
    assert {"ends", "in", "3", "to", "5"} <= set(shown.split())
    assert "3 min to 5 min" in shown or columns == 80
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= columns


def test_a_program_reads_the_ends_of_batches_in_columns_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    known = batch("in_progress", 10, 0, 100)
    known.eta, known.eta_earliest, known.eta_latest = 1_767_323_045, 1_767_323_000, 1_767_323_100
    print_batches([known, batch("completed", 400, 0, 400)])
    header, first, second = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert header[-4:] == ["eta", "eta_earliest", "eta_latest", "name"]
    assert first[-4:-1] == ["2026-01-02T03:04:05Z", "2026-01-02T03:03:20Z", "2026-01-02T03:05:00Z"]
    assert second[-4:-1] == ["", "", ""]


@pytest.mark.parametrize("columns", [80, 200])
def test_a_list_of_batches_breaks_nothing_inside_a_word(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    batches = [
        batch("completed", 400, 0, 400), batch("in_progress", 99_997, 3, 100_000), batch("completed", 1, 13, 14)
    ]  # fmt: skip
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    print_batches(batches)
    shown = re.sub(r"\x1b\[\d*m", "", terminal.getvalue())
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= columns
    words = f"id status done age cost {ID} completed 400/400 mostly failed 1/14, 13 in_progress 99997/100000, 3"
    words += " failed 59 min 0.000123 USD"
    assert set(shown.split()) == set(words.split())
    assert len(shown.splitlines()) == 4 or columns == 80


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_steers_a_terminal_is_written_and_not_obeyed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, is_terminal: bool
) -> None:
    name = "a\x1b[2J\x9b1m\tb\nc\u202ed"
    terminal = as_terminal(monkeypatch, columns=120) if is_terminal else None
    print_table(("id", "name"), [("tenant_1", name)])
    print_fields({"name": name})
    printed = capsys.readouterr().out if terminal is None else terminal.getvalue()
    assert printed.count("a\\x1b[2J\\x9b1m\\tb\\nc\\u202ed") == 2
    assert not any(sign in printed for sign in ("a\x1b", "\x9b", "\u202e"))


def test_letters_of_every_language_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name",), [("größer\u00a0漢字",)])
    assert "größer\u00a0漢字" in capsys.readouterr().out


def test_a_table_as_json_has_the_words_of_its_header_as_keys(capsys: pytest.CaptureFixture[str]) -> None:
    moment = datetime(2026, 11, 21, 15, 57, 10, tzinfo=timezone(timedelta(hours=1)))
    header = ("id", "out, because", "urgent ×", "warns at %", "created", "used")
    print_table(header, [("a\u202eb", None, Decimal("1.50"), True, moment, 7)], as_json=True)
    assert json.loads(capsys.readouterr().out) == [
        {
            "id": "a\u202eb",
            "out_because": None,
            "urgent": "1.50",
            "warns_at": True,
            "created": "2026-11-21T14:57:10Z",
            "used": 7,
        }
    ]
