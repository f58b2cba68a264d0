"""Files that are written whole or not at all, also after a command was killed while it wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.disk.download import replacing


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
