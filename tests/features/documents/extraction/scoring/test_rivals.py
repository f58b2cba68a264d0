"""Tests of second values after the same words: they are detected, and shown to the reviewer of the first."""

from __future__ import annotations

from typing import Any

import pytest

from features.documents.extraction.documents.document import Document, Page
from features.documents.extraction.documents.runs import Runs
from features.documents.extraction.fields.leaf import Leaf, LeafType, Metric
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.grounding.spans import Grounding, Span, Status
from features.documents.extraction.passes.findings import Finding, Reading
from features.documents.extraction.passes.merging import Candidate, Merged
from features.documents.extraction.scoring.records import done_record
from features.documents.extraction.scoring.rivals import rivals_of

DATE = Leaf(path=("date",), type=LeafType.STRING, metric=Metric.DATE)
TOTAL = Leaf(path=("total",), type=LeafType.NUMBER, metric=Metric.MONEY)
VENDOR = Leaf(path=("vendor",), type=LeafType.STRING)


def entry(leaf: Leaf, value: Any, quote: str, text: str) -> Merged:
    start = text.index(quote)
    found = Grounding(status=Status.EXACT, spans=(Span(start, start + len(quote)),), likeness=1.0)
    finding = Finding(reading=Reading(place=leaf.path, value=value, quote=quote), grounding=found)
    return Merged(place=leaf.path, leaf=leaf, candidates=(Candidate(findings=(finding,)),))


@pytest.mark.parametrize(
    ("leaf", "value", "quote", "text", "others"),
    [
        (DATE, "2024-05-04", "4 May 2024", "Date: 4 May 2024\nTotal 3\nDATE | 2024-05-09", ["2024-05-09"]),
        (DATE, "2024-05-04", "4 May 2024", "Date 4 May 2024\nDate 2024-05-04\nDue 2024-06-04", []),
        (TOTAL, 30.0, "EUR 30.00", "Total EUR 30.00\nNet 25.00\n  Total    33.00 EUR", [33.0]),
        (TOTAL, 30.0, "30.00", "Total 30.00\nTotal EUR 30.00", []),
        (VENDOR, "Ash Ltd", "Ash Ltd", "Seller Ash Ltd\nSeller: Birch Inc    Page 1", ["Birch Inc"]),
        (VENDOR, "Ash Ltd", "Ash Ltd", "Seller Ash Ltd\nSeller: ASH LTD, Berlin", []),
        (VENDOR, "Ash Ltd", "Ash Ltd", "Ash Ltd\nBirch Inc", []),
        (
            TOTAL,
            30.0,
            "30.00",
            "here is what we ask of you for it: 30.00\nhere is what we ask of you for it: 31.00",
            [],
        ),
    ],
)
def test_rivals_are_other_values_behind_the_same_words(
    leaf: Leaf, value: Any, quote: str, text: str, others: list[Any]
) -> None:
    found = rivals_of(entry(leaf, value, quote, text), text)
    assert [rival.value for rival in found] == others
    assert all(text[rival.span.start : rival.span.end].strip() for rival in found)


@pytest.mark.parametrize(
    ("enum", "value", "text", "others"),
    [
        (("receipt", "credit note"), "receipt", "Sales receipt\nTotal 3\nCREDIT  NOTE", ["credit note"]),
        (("receipt", "credit note"), "receipt", "Sales receipt\nTotal 3", []),
        (("EUR", "USD"), "USD", "Total USD 30.00\nSum €30.00", ["EUR"]),
        (("EUR", "USD"), "EUR", "Total €30.00, in EUR", []),
        (("paid", "unpaid"), "unpaid", "it is unpaid", []),
    ],
)
def test_of_a_choice_every_other_member_that_the_document_names_is_a_rival(
    enum: tuple[str, ...], value: str, text: str, others: list[str]
) -> None:
    choice = Leaf(path=("state",), type=LeafType.STRING, enum=enum, ground=False)
    finding = Finding(reading=Reading(place=("state",), value=value))
    merged = Merged(place=("state",), leaf=choice, candidates=(Candidate(findings=(finding,)),))
    assert [rival.value for rival in rivals_of(merged, text)] == others


def test_a_rival_is_shown_beside_the_value_and_lowers_its_score() -> None:
    schema = FieldSchema.parse('{"type": "object", "properties": {"vendor": {"type": "string"}}}')
    (leaf,) = schema.leaves
    texts = "Seller Ash Ltd\nSeller Birch Inc", "Seller Ash Ltd\nCustomer Birch Inc"
    told = []
    for text in texts:
        page = Page(start=0, end=len(text))
        document = Document(
            text=text, pages=(page,), runs=Runs.of([]), cells=(), headings=(), format="txt", parser="test 1"
        )
        merged = [entry(leaf, "Ash Ltd", "Ash Ltd", text)]
        told += done_record(schema, merged, document, name="a", sha256="0", usage={})["evidence"]
    assert [each["value"] for each in told[0]["others"]] == ["Birch Inc"]
    assert told[0]["reasons"] == ["the document has another value, too"]
    assert "others" not in told[1]
    assert told[0]["score"] < told[1]["score"]
