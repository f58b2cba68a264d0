"""Tests of the files that a step reads, and of progress reports while many are listed and opened."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from features.pipelines.context import RunContext
from features.pipelines.external.folder import LocalFolder
from features.pipelines.sources.store_files import take_files
from features.pipelines.spec import parse_definition

_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def test_whoever_takes_files_moves_while_they_are_listed_and_opened(tmp_path: Path) -> None:
    for number in range(2500):
        (tmp_path / f"{number:04d}.txt").touch()
    for name in ("a.csv", "b.csv", "c.csv"):
        (tmp_path / name).write_text("text\none\n")
    step = {
        "name": "fields",
        "source": {"store": "documents", "keys": "*.csv"},
        "prompt": "{{ text }}",
        "model": "demo",
        "output": {"store": "results", "keys": "out/part-{n}.jsonl"},
    }
    definition = parse_definition({"steps": [step]})
    context = RunContext(
        run_id="run_1",
        tenant_id="t",
        pipeline_id="pl_1",
        pipeline="p",
        kind="manual",
        scheduled_for=_MOMENT,
        interval_start=_MOMENT,
        interval_end=_MOMENT,
        zone=ZoneInfo("UTC"),
        definition=definition,
    )
    moved: list[None] = []
    taken = take_files(
        LocalFolder("documents", tmp_path),
        context,
        definition.steps[0],
        lambda found: found,
        moves=lambda: moved.append(None),
    )
    assert [file.key for file in taken.files] == ["a.csv", "b.csv", "c.csv"]
    assert len(moved) == 2 + 3, "once a thousand files that are listed, and each that is opened for its columns"
    assert next(taken.rows).values == {"text": "one"}
    assert len(moved) == 2 + 3 + 1, "the first is opened for its rows"
