"""Tests that `tokenmill bench record` writes a database's day, or reports in one sentence why it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs.errors import InputError
from tests.cli.service import run

SPAN = ("--from", "2026-11-20T00:00:00Z", "--to", "2026-11-21")


def test_a_day_without_batches_is_written_as_such(database: str, tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    done = run("bench", "record", *SPAN, "-o", path, TOKENMILL_DATABASE_URL=database)
    assert (done.exit_code, done.stdout) == (0, f"{path}: 0 batches\n")
    head = json.loads(path.read_text())
    assert (head["object"], head["start"]) == ("day", "2026-11-20T00:00:00+00:00")


@pytest.mark.parametrize(
    ("span", "said"),
    [
        (("--from", "yesterday", "--to", "2026-11-21"), "--from is 'yesterday'; give a time"),
        (("--from", "2026-11-21", "--to", "2026-11-20"), "give a later end"),
    ],
)
def test_a_wrong_span_is_refused(database: str, tmp_path: Path, span: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        run("bench", "record", *span, "-o", tmp_path / "day.jsonl", TOKENMILL_DATABASE_URL=database)
    assert not (tmp_path / "day.jsonl").exists()


def test_a_file_that_cannot_be_written_is_named(database: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write .*: No such file or directory"):
        run("bench", "record", *SPAN, "-o", tmp_path / "none" / "day.jsonl", TOKENMILL_DATABASE_URL=database)
