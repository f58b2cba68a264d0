"""Tests of the nightly example's documents: reproducible from the seed, and files appear complete."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

from examples.nightly.drop_documents import VENDORS, drop


def rows(folder: Path, *, seed: int) -> list[dict[str, Any]]:
    path = drop(folder, day=date(2026, 11, 20), seed=seed, count=20)
    assert path == folder / "2026-11-20" / f"scan-{seed:04d}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_seed_gives_the_same_documents_again_and_another_one_others(tmp_path: Path) -> None:
    first = rows(tmp_path / "a", seed=1)
    assert first == rows(tmp_path / "b", seed=1)
    texts = {row["text"] for row in first}
    assert len(texts) == 20
    assert texts.isdisjoint(row["text"] for row in rows(tmp_path / "a", seed=2))


def test_each_document_is_of_one_of_the_vendors(tmp_path: Path) -> None:
    for row in rows(tmp_path, seed=1):
        assert len([vendor for vendor in VENDORS if vendor in row["text"]]) == 1


def test_nothing_but_the_file_is_left(tmp_path: Path) -> None:
    rows(tmp_path, seed=1)
    assert [path.name for path in (tmp_path / "2026-11-20").iterdir()] == ["scan-0001.jsonl"]
