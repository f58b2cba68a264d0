"""Tests of when two starts of `tokenmill extract` are one command, and of the names of its documents."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.extracting.order import Order, folder_of, inputs_of
from cli.extracting.outputs import Outputs
from features.documents.extraction.course.job import ExtractJob, Passes, plan
from jobs.errors import InputError
from tests.cli.service import run

WIDE = {"type": "object", "properties": {f"field_{number}": {"type": "string"} for number in range(6)}}


def job(*, max_fields: int = 25) -> ExtractJob:
    return plan(json.dumps(WIDE).encode(), quotes=True, params={"max_tokens": 4096}, max_fields=max_fields)


def key(tmp_path: Path, one: ExtractJob, *, place: str = "here", **changed: Any) -> str:
    (tmp_path / "a.txt").write_text("Invoice of Ash Ltd")
    outputs = Outputs(records=tmp_path / "out.jsonl")
    given = {"body": {}, "outputs": outputs, "inputs": inputs_of([tmp_path / "a.txt"])}
    return folder_of(Order(job=one, **{**given, **changed}), place=place, data_dir=tmp_path / "d").key


def test_the_same_start_is_the_same_command(tmp_path: Path) -> None:
    assert key(tmp_path, job()) == key(tmp_path, job())


@pytest.mark.parametrize(
    "changed",
    [
        {"place": "there"},
        {"inputs": []},
        {"outputs": Outputs(records=Path("other.jsonl"))},
        {"body": {"index_id": "index_1"}},
    ],
)
def test_another_place_document_output_or_index_is_another_command(tmp_path: Path, changed: dict[str, Any]) -> None:
    assert key(tmp_path, job()) != key(tmp_path, job(), **changed)


def test_a_report_is_part_of_the_outputs(tmp_path: Path) -> None:
    more = Outputs(records=tmp_path / "out.jsonl", report=tmp_path / "look.html")
    assert key(tmp_path, job()) != key(tmp_path, job(), outputs=more)


@pytest.mark.parametrize("passes", [Passes(again=False), Passes(second_reading=True), Passes(cover=True)])
def test_other_passes_are_another_command(tmp_path: Path, passes: Passes) -> None:
    assert key(tmp_path, job()) != key(tmp_path, replace(job(), passes=passes))


def test_other_groups_are_another_command_though_they_are_as_many(tmp_path: Path) -> None:
    four, five = job(max_fields=4), job(max_fields=5)
    assert len(four.groups) == len(five.groups) == 2
    assert key(tmp_path, four) != key(tmp_path, replace(five, params=four.params))


def test_another_order_of_the_fields_is_another_command(tmp_path: Path) -> None:
    fields = dict(reversed(WIDE["properties"].items()))  # type: ignore[attr-defined]  # of a dictionary
    other = plan(json.dumps({**WIDE, "properties": fields}).encode(), quotes=True, params={"max_tokens": 4096},
                 max_fields=25)  # fmt: skip
    assert key(tmp_path, job()) != key(tmp_path, other)


def test_other_readers_are_another_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(tmp_path, job())
    monkeypatch.setattr("cli.extracting.order.PARSERS", "plain 2")
    assert key(tmp_path, job()) != before


def test_a_document_whose_name_is_no_utf_8_is_named_by_its_bytes(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/B\xfccher.txt"))
    path.write_text("Invoice of Ash Ltd")
    assert [one.name for one in inputs_of([path])] == [f"{tmp_path}/B\\xfccher.txt"]


def test_a_document_that_cannot_be_read_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"cannot read {tmp_path}/gone.txt"):
        inputs_of([tmp_path / "gone.txt"])


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
