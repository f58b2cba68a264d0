"""Tests of the column of a value's place in the table at the end of an extraction."""

from __future__ import annotations

from typing import Any

import pytest

from cli.extracting.screen import summary, where
from cli.extracting.tally import Tally
from tests.tutorial import ROOT, matches

SPAN = {"start": 11, "end": 18, "page": 0, "box": None}


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({"grounding": "exact", "spans": [SPAN], "features": {"status": "exact"}}, "page 1, character 11"),
        ({"grounding": "fuzzy", "spans": [SPAN], "features": {"status": "fuzzy"}}, "about page 1, character 11"),
        ({"grounding": "none", "spans": [], "features": {"status": "none"}}, "not found"),
        ({"grounding": "none", "spans": [], "features": {}}, "concluded"),
        ({"grounding": "none", "spans": [], "features": {}, "value": None}, ""),
        ({"grounding": "none", "spans": [], "features": {"status": "none"}, "value": None, "answer": "a"}, "nowhere"),
        ({"grounding": "none", "spans": [], "features": {}, "value": []}, ""),
    ],
)
def test_a_value_that_need_not_stand_in_its_document_is_not_missed_there(told: dict[str, Any], shown: str) -> None:
    assert where({"value": "a", **told}) == shown


def test_the_end_says_of_how_many_documents_something_was_not_read() -> None:
    record: dict[str, Any] = {"error": None, "evidence": [], "usage": {}}
    tally = Tally()
    list(tally.passing(iter([{**record, "notes": ["2 of 3 pages have no text"]}, {**record, "notes": []}, record])))
    assert summary(tally)[1] == "1 of them not read or asked completely, or uncertain: see `notes` of their records"


def test_the_end_says_how_many_answers_stood_in_no_document() -> None:
    told = {"grounding": "none", "features": {"status": "none"}, "review": True, "answer": 7}
    tally = Tally()
    list(tally.passing(iter([{"error": None, "evidence": [told, told], "usage": {}}])))
    assert (tally.num_withheld, tally.num_to_review, tally.groundings["none"]) == (2, 2, 2)
    assert any(line.startswith("2 answers not in the document") for line in summary(tally))


def test_the_tutorial_holds_where_one_answer_is_to_be_looked_at() -> None:
    page = (ROOT / "docs" / "tutorials" / "extract_invoices.md").read_text()
    shown = next(line for line in page.splitlines() if "to review" in line)
    printed = "tokenmill: 2 values, 100.0% of them found in the document; 1 answer to review (review: true)"
    assert matches(shown, printed)
