"""Tests of the graph of an extraction: which stages are to come after those that have begun, and which may come."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from features.documents.extraction.course.job import Passes
from features.documents.pages.graphs import graph_of
from features.documents.stages import stages_for
from features.documents.tables import Extraction, ExtractionNode
from flows.ends import FlowEnd
from flows.parts import FlowParts

NOW = datetime.now(UTC)


def graph(begun: list[tuple[str, int]], **values: Any) -> list[tuple[str, str]]:
    """Return names and kinds of the nodes of an extraction: it is at the last of these stages, with so many lines."""
    covers = bool(values.get("plan"))
    names = [stage.value for stage in stages_for(Passes(again=values.get("again", True), cover=covers))]
    before = [(name, 0) for name in names[: names.index(begun[0][0])]] if begun else []
    nodes = [
        ExtractionNode(name=name, number=n, num_lines=lines, begun_at=NOW, done_at=None if n == last else NOW)
        for last in [len(before) + len(begun) - 1]
        for n, (name, lines) in enumerate([*before, *begun])
    ]
    extraction = Extraction(id="e", state="in_progress", expires_at=NOW, **{"plan": {}, "again": True, **values})
    parts = FlowParts(begun=nodes, batches={}, serving={})
    drawn = graph_of(extraction, parts, outlooks={}, end=FlowEnd(), currency="USD")
    return [(node.name, node.kind.value) for node in drawn.nodes if not node.has_begun]


COVERED = {"passes": {"cover": True}}


@pytest.mark.parametrize(
    ("begun", "values", "left"),
    [
        ([], {"again": False}, "read ahead, ask ahead, ground ahead"),
        ([], {}, "read ahead, ask ahead, ground ahead, ask again if-needed, ground again if-needed"),
        ([("ground", 9)], {"again": False, "plan": COVERED}, "ask covered ahead, ground covered ahead"),
        ([("ask_again", 3)], {}, "ground again ahead, ask again if-needed, ground again if-needed"),
        ([("ask_again", 0)], {}, "ground again ahead"),
        ([("ground_again", 3)], {}, "ask again if-needed, ground again if-needed"),
        (
            [("ground_again", 3)],
            {"plan": COVERED},
            "ask again if-needed, ground again if-needed, ask covered ahead, ground covered ahead",
        ),
        ([("ground_again", 0)], {"plan": COVERED}, "ask covered ahead, ground covered ahead"),
        (
            [("ground_again", 3), ("ask_again", 2)],
            {},
            "ground again ahead, ask again if-needed, ground again if-needed",
        ),
        ([("ask_covered", 5)], {"plan": COVERED}, "ground covered ahead"),
        ([("ground_covered", 5)], {"plan": COVERED}, ""),
    ],
)
def test_further_rounds_are_drawn_as_long_as_they_may_come(
    begun: list[tuple[str, int]], values: dict[str, Any], left: str
) -> None:
    assert ", ".join(f"{name} {kind}" for name, kind in graph(begun, **values)) == left


def test_the_index_that_is_asked_comes_first() -> None:
    plan = {"corpus": {"index_id": "index_1", "name": "Contracts"}}
    extraction = Extraction(id="e", state="in_progress", expires_at=NOW, plan=plan, again=True)
    parts: FlowParts[ExtractionNode] = FlowParts(begun=[], batches={}, serving={})
    (index,) = graph_of(extraction, parts, outlooks={}, end=FlowEnd(), currency="USD").sources
    assert (index.name, index.path, index.is_id) == ("Contracts", "/indexes/index_1", False)
