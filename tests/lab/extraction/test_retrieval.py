"""Tests of the retrieval benchmark, on a collection whose figures can be computed by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from lab.extraction.__main__ import main
from lab.extraction.retrieval import ndcg

LINES = [
    {"kind": "document", "id": "1", "text": "shear flow past a plate"},
    {"kind": "document", "id": "2", "text": "shear of a wing; flow"},
    {"kind": "document", "id": "3", "text": "heat"},
    {"kind": "query", "id": "1", "text": "heated bodies", "relevant": ["3"]},
    {"kind": "query", "id": "2", "text": "wing", "relevant": ["2", "3"]},
]


def test_a_collection_is_measured_from_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "collection.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in LINES))
    assert main(["retrieval", str(path), "--json"]) == 0
    (words,) = json.loads(capsys.readouterr().out)
    best_of_two = 1 + 1 / math.log2(3)
    assert words["ndcg_at_10"] == pytest.approx((1 + 1 / best_of_two) / 2)
    assert words["recall_at_10"] == words["recall_at_100"] == 0.75


def test_gain_is_less_the_later_a_relevant_document_comes() -> None:
    assert ndcg(frozenset("ab"), ["a", "b", "c"]) == 1
    assert ndcg(frozenset("a"), ["c", "a"]) == pytest.approx(1 / math.log2(3))
    assert ndcg(frozenset("a"), list("bcdefghijka")) == 0
