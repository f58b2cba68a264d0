"""Tests of files that are written completely or not at all, also after a command was killed while writing."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from cli import app as command_line
from cli.disk.download import OutputError, replacing
from cli.disk.output_path import require_replaceable
from cli.run_command import telling_where_answers_are
from cli.submitting.results import ResultFiles
from jobs.errors import ServiceError


def test_what_a_killed_command_left_is_gone_once_the_file_is_written(tmp_path: Path) -> None:
    target, left = tmp_path / "out.jsonl", tmp_path / ".out.jsonl.part"
    target.write_text("old")
    left.write_text("half of a long file")
    with replacing(target) as file:
        file.write(b"new")
        assert target.read_text() == "old"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"out.jsonl": "new"}


def test_two_that_write_one_file_do_not_mix(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    with replacing(target) as first, replacing(target) as second:
        first.write(b"first")
        second.write(b"second, longer")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"out.jsonl": "first"}


def test_what_another_file_is_too_is_not_written_over(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    os.link(mine, tmp_path / ".out.jsonl.part")
    with replacing(tmp_path / "out.jsonl") as file:
        file.write(b"new")
    assert (mine.read_text(), (tmp_path / "out.jsonl").read_text()) == ("mine", "new")


def write_half(target: Path) -> None:
    with replacing(target) as file:
        file.write(b"new")
        raise KeyError


def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("old")
    with pytest.raises(KeyError):
        write_half(target)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"out.jsonl": "old"}


def write_beside(removed: Path) -> None:
    """Write into a folder that is removed meanwhile."""
    removed.mkdir()
    with replacing(removed / "out.jsonl") as file:
        file.write(b"new")
        shutil.rmtree(removed)


def test_a_folder_that_is_removed_meanwhile_is_named_as_it_was_given(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as refused:
        write_beside(tmp_path / "gone")
    assert (refused.value.errno, refused.value.filename) == (errno.ENOENT, str(tmp_path / "gone" / "out.jsonl"))


def test_a_command_whose_output_cannot_be_made_ends_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_line, "app", lambda: write_beside(tmp_path / "gone"))
    with pytest.raises(SystemExit, match="1"):
        command_line.run()
    assert capsys.readouterr().err == (
        f"tokenmill: No such file or directory: {tmp_path}/gone/out.jsonl. "
        "Run the same command again once it can be written.\n"
    )


def test_a_run_whose_output_cannot_be_made_says_where_its_answers_are(tmp_path: Path) -> None:
    results = ResultFiles(answers=tmp_path / "gone" / "out.jsonl")
    with pytest.raises(ServiceError) as refused, telling_where_answers_are(results, "batch_1"):
        write_beside(tmp_path / "gone")
    said = refused.value.message
    assert said.startswith(
        f"cannot write {results.answers}: No such file or directory. The answers are kept in batch_1"
    )
    assert "`tokenmill batch results batch_1 -o FILE`" in said


def test_that_a_file_can_be_written_is_tried_and_leaves_nothing(tmp_path: Path) -> None:
    require_replaceable(tmp_path / "out.jsonl")
    assert not list(tmp_path.iterdir())
