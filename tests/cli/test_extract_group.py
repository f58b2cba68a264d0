"""Tests of the subcommands of `tokenmill extract`, of which `run` needs no name."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.errors import InputError
from tests.cli.service import run


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_the_help_lists_every_subcommand(words: tuple[str, ...]) -> None:
    shown = run("extract", *words).output
    assert [name for name in ("run", "index", "evaluate", "calibrate") if f"\n  {name} " in shown] == [
        *("run", "index", "evaluate", "calibrate")
    ]


@pytest.mark.parametrize("words", [("run", "--help"), ("in", "--help"), ("--schema", "s.json", "--help")])
def test_documents_are_those_of_run(words: tuple[str, ...]) -> None:
    result = run("extract", *words)
    assert (result.exit_code, " extract run [OPTIONS] {DOCS}..." in result.stdout) == (0, True)


@pytest.mark.parametrize(("word", "meant"), [("evalute", "evaluate"), ("calibrat", "calibrate"), ("indx", "index")])
def test_a_misspelled_subcommand_is_answered_with_the_one_that_is_close(
    word: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("extract", word, "fields.jsonl", "--gold", "gold.jsonl")
    assert (result.exit_code, f"'{meant}'" in result.stderr) == (2, True)


def test_a_folder_that_looks_like_a_subcommand_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evalute").mkdir()
    with pytest.raises(InputError, match=r"evalute: the folder has no file"):
        run("extract", "evalute", "--schema", "s.json", "-o", "out.jsonl")


def test_what_is_like_no_subcommand_is_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"papers: no such file or folder"):
        run("extract", "papers", "--schema", "s.json", "-o", "out.jsonl")
