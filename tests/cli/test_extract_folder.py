"""Tests of when two starts of `tokenmill extract` are one run, and of the names of its documents."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from cli.extracting.running import records, run_batches
from cli.extracting.work import ExtractFolder, folder_of
from cli.places.session import Session
from cli.places.stage import Stage
from features.documents.extraction.course.document import NO_ROOM
from features.documents.extraction.course.job import ExtractJob, Passes, plan
from features.documents.extraction.scoring.records import UNANSWERED
from jobs.errors import InputError
from tests.cli.service import run
from tests.features.documents.answering import ENDLESS
from tests.features.documents.builders import LocalModel

WIDE = {"type": "object", "properties": {f"field_{number}": {"type": "string"} for number in range(6)}}


def job(*, max_fields: int = 25) -> ExtractJob:
    return plan(json.dumps(WIDE).encode(), quotes=True, params={"max_tokens": 4096}, max_fields=max_fields)


def folder(tmp_path: Path, one: ExtractJob, **changed: Any) -> ExtractFolder:
    files = [tmp_path / "a.txt"]
    files[0].write_text("Invoice of Ash Ltd")
    given = {"place": "here", "base": tmp_path / "d", "outputs": [tmp_path / "out.jsonl"]}
    return folder_of(one, files, **{**given, **changed})


def test_the_same_start_is_the_same_run(tmp_path: Path) -> None:
    assert folder(tmp_path, job()).run == folder(tmp_path, job()).run


def test_asking_once_is_another_run_than_asking_again(tmp_path: Path) -> None:
    assert folder(tmp_path, job()).run != folder(tmp_path, replace(job(), passes=Passes(again=False))).run


def test_reading_twice_is_another_run_than_reading_once(tmp_path: Path) -> None:
    assert folder(tmp_path, job()).run != folder(tmp_path, replace(job(), passes=Passes(second_reading=True))).run


def test_other_groups_are_another_run_though_they_are_as_many(tmp_path: Path) -> None:
    four, five = job(max_fields=4), job(max_fields=5)
    assert len(four.groups) == len(five.groups) == 2
    assert folder(tmp_path, four).run != folder(tmp_path, replace(five, params=four.params)).run


def test_other_readers_are_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = folder(tmp_path, job())
    monkeypatch.setattr("cli.extracting.prepared.PARSERS", "plain 2")
    assert folder(tmp_path, job()).run != before.run


def endless(tmp_path: Path, one: ExtractJob) -> ExtractFolder:
    """Return the folder of a document whose fields are answered one at a time."""
    work = folder(tmp_path, one)
    (tmp_path / "a.txt").write_text("\n".join(f"{name}: {name[-1]} {ENDLESS}" for name in WIDE["properties"]))
    work.prepare([tmp_path / "a.txt"], on_each=lambda: None)
    return work


def test_a_round_asks_as_much_as_a_batch_may_have_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_MAX_BATCH_LINES", "1")
    one = job()
    work = endless(tmp_path, one)
    run_batches(one, work, cast(Session, LocalModel()))
    assert [stage.lines.read_bytes().count(b"\n") for stage in work.rounds()] == [1, 1, 1, 0]
    (record,) = records(one, work)
    reasons = {each["path"]: each["reasons"] for each in record["evidence"] if each["review"]}
    assert list(reasons) == [name for name, value in record["fields"].items() if value is None]
    assert {reason for each in reasons.values() for reason in each} == {f"{UNANSWERED}: {NO_ROOM}"}


@pytest.mark.parametrize("num_removed", range(4))
def test_what_a_kill_leaves_of_finished_rounds_is_removed_or_fits_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_removed: int
) -> None:
    one = job()
    work = endless(tmp_path, one)
    run_batches(one, work, cast(Session, LocalModel()))
    written = work.rounds()
    left = iter(range(num_removed))

    def killed(path: Path, **_options: Any) -> None:
        if path.exists() and next(left, None) is None:
            raise KeyboardInterrupt
        remove(path, ignore_errors=True)

    remove = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        work.finish([], num_done=1, failed={})
    monkeypatch.undo()
    assert work.rounds() == written[: len(written) - num_removed]
    assert len(list(work.run.root.glob("again*"))) == len(work.rounds())
    remove(work.again(1).run.root)
    work.free_disk()
    assert not list(work.run.root.glob("again*"))


def test_a_run_that_stopped_between_rounds_goes_on_and_leaves_nothing_of_them(tmp_path: Path) -> None:
    class Stopping(LocalModel):
        def run(self, stage: Stage) -> None:
            if stage.run.root.name == "again-2":
                raise KeyboardInterrupt
            super().run(stage)

    one = job()
    work = endless(tmp_path, one)
    with pytest.raises(KeyboardInterrupt):
        run_batches(one, work, cast(Session, Stopping()))
    run_batches(one, work, cast(Session, LocalModel()))
    *asked, last = work.rounds()
    assert [stage.run.root.name for stage in asked] == ["again", "again-2", "again-3"]
    assert last.lines.read_bytes() == b""
    (record,) = records(one, work)
    assert record["fields"] == {name: f"{name[-1]} {ENDLESS}" for name in WIDE["properties"]}
    work.finish([], num_done=1, failed={})
    assert not list(work.run.root.glob("again*"))


def test_a_document_whose_name_is_no_utf_8_is_read_and_named_by_its_bytes(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/B\xfccher.txt"))
    path.write_text("Invoice of Ash Ltd")
    found = folder_of(job(), [path], place="here", base=tmp_path / "d", outputs=[])
    found.prepare([path], on_each=lambda: None)
    assert [one.name for _, one in found.prepared()] == [f"{tmp_path}/B\\xfccher.txt"]


@pytest.mark.parametrize(
    ("command", "option", "name", "says"),
    [
        ("calibrate", "-o", "gold.jsonl", "is the gold"),
        ("calibrate", "-o", "fields.jsonl", "is the records"),
        ("evaluate", "--report", "schema.json", "is the schema"),
    ],
)
def test_what_records_are_judged_by_is_not_replaced(
    tmp_path: Path, command: str, option: str, name: str, says: str
) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(WIDE))
    for empty in ("fields.jsonl", "gold.jsonl"):
        (tmp_path / empty).touch()
    given = [str(tmp_path / "fields.jsonl"), "--gold", str(tmp_path / "gold.jsonl")]
    with pytest.raises(InputError, match=says):
        run("extract", command, *given, "--schema", str(tmp_path / "schema.json"), option, str(tmp_path / name))


def test_a_target_that_nothing_can_reach_is_refused(tmp_path: Path) -> None:
    given = ("--gold", "g.jsonl", "--schema", "s.json", "-o", str(tmp_path / "c.json"))
    with pytest.raises(InputError, match=r"--target is 1, which cannot be reached.* Give a share below 1"):
        run("extract", "calibrate", "fields.jsonl", *given, "--target", "1.0")


@pytest.mark.parametrize("command", ["evaluate", "calibrate"])
def test_two_records_of_one_name_are_refused(tmp_path: Path, command: str) -> None:
    schema = {"type": "object", "properties": {"total": {"type": "string"}}}
    record = {"document": "a.txt", "fields": {"total": "1"}, "evidence": []}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    (tmp_path / "gold.jsonl").write_text(json.dumps({"document": "a.txt", "fields": {"total": "1"}}))
    (tmp_path / "fields.jsonl").write_text(f"{json.dumps(record)}\n" * 2)
    given = [str(tmp_path / "fields.jsonl"), "--gold", str(tmp_path / "gold.jsonl")]
    given += ["--schema", str(tmp_path / "schema.json")]
    given += ["-o", str(tmp_path / "c.json")] if command == "calibrate" else []
    with pytest.raises(InputError, match=r"fields\.jsonl: gold names 'a\.txt', the name of two records"):
        run("extract", command, *given)
