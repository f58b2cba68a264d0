"""Tests that outputs of `tokenmill map` that cannot be written are refused before any computation."""

from __future__ import annotations

import hashlib
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
import pytest

from cli.mapping.folder import render as render_rows
from cli.mapping.job import MapOptions, plan
from features.pipelines.rows.sources.files import Format, reads
from features.pipelines.rows.sources.reading import open_source
from jobs.errors import InputError
from tests.cli.service import run

WIDE: list[dict[str, Any]] = [{"a": 1.5}, *({"a": 2} for _ in range(1023))]


def render(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = plan(open_source(str(path)), MapOptions(prompt="x", model="m"), Format.PARQUET)
    render_rows(job, BytesIO(), consume=lambda _: None)


@pytest.mark.parametrize(
    "rows", [[{"meta": {}}, {"meta": {}}], [*WIDE, {"a": 9007199254740993}]], ids=["no fields", "no such float"]
)
def test_rows_that_parquet_cannot_hold_are_refused_as_they_are_read(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    with pytest.raises(InputError, match="cannot be written as Parquet") as caught:
        render(tmp_path, rows)
    assert "Write JSONL" in caught.value.message


def test_a_column_of_floats_and_small_integers_can_be_parquet(tmp_path: Path) -> None:
    render(tmp_path, [*WIDE, {"a": 7}])


def test_thoughts_are_a_column_of_another_job(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"a": 1}\n')
    source = open_source(str(tmp_path / "in.jsonl"))
    plain, thinking = (
        plan(source, MapOptions(prompt="x", model="m", thoughts=thoughts), Format.JSONL) for thoughts in (False, True)
    )
    assert (list(plain.shape.typed), list(thinking.shape.typed)) == (
        ["answer", "error"],
        ["answer", "thoughts", "error"],
    )
    assert plain.identity() != thinking.identity()
    parts = [source.identity(), [("user", "x")], plain.ask.body(), "", "jsonl", []]
    assert plain.identity() == hashlib.sha256(orjson.dumps(parts)).hexdigest()[:24], "an earlier release's job goes on"


@pytest.mark.parametrize(
    ("source", "output", "found"),
    [
        ("day", "day/out.jsonl", True),
        ("day", "day/deep/out.csv", True),
        ("day", "day/_out/a.csv", False),
        ("day", "out.jsonl", False),
        ("day/a.csv", "day/../day/a.csv", True),
        ("day/a.csv", "day/b.csv", False),
        ("day/*.csv", "day/new.csv", True),
        ("day/*.csv", "day/new.jsonl", False),
        ("**/*.csv", "day/new.csv", True),
        ("s3://day/", "day/a.csv", False),
    ],
)
def test_an_output_that_the_source_reads_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, output: str, *, found: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("day").mkdir()
    Path("day/a.csv").write_text("text\na\n")
    assert reads(source, Path(output)) is found
    assert "://" in source or reads(f"file://{tmp_path}/{source}", Path(output)) is found


def test_an_output_in_the_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\na\n")
    (tmp_path / "p.j2").write_text("{{ text }}")
    prompt = ("--prompt", str(tmp_path / "p.j2"))
    for source, name in ((tmp_path, "out.jsonl"), (tmp_path / "a.csv", "a.csv")):
        with pytest.raises(InputError, match=r"of the source .* Choose with -o a path outside it"):
            run("map", str(source), "-o", str(tmp_path / name), *prompt, TOKENMILL_BASE_URL="")
    assert (tmp_path / "a.csv").read_text() == "text\na\n"


def test_an_output_that_is_the_prompt_or_the_schema_is_refused(tmp_path: Path) -> None:
    for name in ("a.csv", "p.jsonl", "s.jsonl"):
        (tmp_path / name).write_text("{}")
    given = ("--prompt", str(tmp_path / "p.jsonl"), "--schema", str(tmp_path / "s.jsonl"))
    for name, what in (("p.jsonl", "the prompt"), ("s.jsonl", "the schema")):
        with pytest.raises(InputError, match=f"is {what}"):
            run("map", str(tmp_path / "a.csv"), "-o", str(tmp_path / name), *given, TOKENMILL_BASE_URL="")
