"""Tests of captions: the words before a value, on its line or above it, values that no field has, and their counts."""

from __future__ import annotations

import pytest

from features.documents.extraction.fields.leaf import Kind
from features.documents.extraction.grounding.spans import Span
from features.documents.extraction.scoring.captions import CaptionCounts, Captions

TEXT = """Acme Ltd
Amount due: 119.00
Tax    19.00
Order
PO-17
Item | Date | Price
Paper | 4 May 2024 | 12.00
Pens | 5 May 2024 | 3.00
This sentence has far too many words for a caption: 7
12
13"""


def span(words: str) -> Span:
    start = TEXT.index(words)
    return Span(start, start + len(words))


@pytest.mark.parametrize(
    ("words", "caption"),
    [
        ("119.00", "amount due"),
        ("19.00", "amount due"),
        ("PO-17", "order"),
        ("4 May 2024", "date"),
        ("3.00", "price"),
        ("Pens", "item"),
        ("7", None),
        ("13", None),
        ("Acme Ltd", None),
    ],
)
def test_a_caption_stands_before_a_value_above_it_or_over_its_column(words: str, caption: str | None) -> None:
    place = Span(TEXT.rindex("7"), TEXT.rindex("7") + 1) if words == "7" else span(words)
    assert Captions(TEXT).before(place) == caption


def test_values_of_a_kind_that_no_field_has_are_named_by_their_captions() -> None:
    claimed = [span("119.00"), span("4 May 2024")]
    free = Captions(TEXT).unclaimed(claimed)
    assert [each.caption for each in free if Kind.DATE in each.kinds] == ["date"]
    amounts = {each.caption for each in free if Kind.MONEY in each.kinds}
    assert "amount due" not in amounts
    assert {"tax", "price"} <= amounts


def test_a_text_without_lines_has_no_captions() -> None:
    assert Captions("").unclaimed([]) == []
    assert Captions("").before(Span(0, 0)) is None


def test_a_share_is_of_the_documents_that_remain() -> None:
    counts = CaptionCounts.of([("total: due", True), ("total: due", True), ("total: net", False), (None, True)])
    assert counts.share("total: due") == pytest.approx(2.5 / 3)
    assert counts.share("total: net") == pytest.approx(0.25)
    assert counts.share("total: other") is None
    assert counts.share(None) is None
    rest = counts.without(CaptionCounts.of([("total: due", True), ("total: net", False)]))
    assert rest.share("total: due") == pytest.approx(0.75)
    assert rest.share("total: net") is None
