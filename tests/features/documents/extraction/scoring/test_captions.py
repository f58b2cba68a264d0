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
    assert {"tax", "price"} <= amounts
    assert "amount due" not in amounts


@pytest.mark.parametrize(
    ("text", "captions"),
    [
        ("Customer: Ash Ltd\nInvoice number: R-17", ["customer", "invoice number"]),
        ("Delivery date | Order | Amount", []),
        ("Total: 5.00   Tax: 1.00", ["total", "tax"]),
        ("Seller\nAsh Ltd", ["seller"]),
        ("A whole line of words that is much too long for a caption\n5.00", []),
    ],
)
def test_a_label_is_no_value_and_names_the_next_one(text: str, captions: list[str]) -> None:
    assert [each.caption for each in Captions(text).unclaimed([])] == captions


def test_a_text_without_lines_has_no_captions() -> None:
    assert Captions("").unclaimed([]) == []
    assert Captions("").before(Span(0, 0)) is None


def test_a_share_is_drawn_to_a_half() -> None:
    counts = CaptionCounts.of([("total: due", True), ("total: due", True), ("total: net", False), (None, True)])
    assert counts.share("total: due") == pytest.approx(3 / 4)
    assert counts.share("total: net") == pytest.approx(1 / 3)
    assert counts.share("total: other") is None
    assert counts.share(None) is None
    assert CaptionCounts.sum_of([counts, counts]).share("total: net") == pytest.approx(1 / 4)
