"""Tests of values that occur in a text in some form, and values that occur nowhere in it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.documents.extraction.fields.leaf import Kind
from features.documents.extraction.grounding.align import Sought, ground
from features.documents.extraction.grounding.standing import Standing

TEXT, NUMBER, MONEY, DATE = Kind.TEXT, Kind.NUMBER, Kind.MONEY, Kind.DATE
CELLS = "To: 12 High Street    Invoice 17\nLondon SW1    Date 4 May\n\nCountry: UK"


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ("ash ltd", TEXT, "Vendor: ASH  Ltd."),
        ("Farvenen Chemicals", TEXT, "Farvenen Chemcals"),
        ("DE89370400440532013000", TEXT, "IBAN: DE89 3704 0044 0532 0130 00 BIC X"),
        ("C-17", TEXT, "Ref C 17"),
        ("+49301234567", TEXT, "Tel. +49 30 123 4567"),
        ("12 High Street, London SW1", TEXT, CELLS),
        ("EUR", TEXT, "Total 12,50 €"),
        ("USD", TEXT, "Total $5"),
        ("EUR 12.50", TEXT, "12,50 €"),
        ("12.50", TEXT, "EUR 12,50"),
        ("400.5", TEXT, "Sum 400.50"),
        ("2024-03-05", TEXT, "am 5. März 2024"),
        ("2024-03-05", DATE, "5 March 2024"),
        ("2024-03-05T10:00:00Z", DATE, "5 March 2024, 10:00"),
        (1234.5, NUMBER, "1.234,50"),
        (1234.5, MONEY, "EUR 1 234,50"),
        (12, NUMBER, "12pcs"),
        (12, NUMBER, "2x12"),
        (3, NUMBER, "Boxes (3)"),
        (-3, NUMBER, "Change (3)"),
        (19, NUMBER, "VAT 19 %"),
        (0.19, NUMBER, "VAT 19 %"),
        (2024, NUMBER, "5.3.2024"),
    ],
)
def test_a_value_stands_in_any_form_that_documents_write_it_in(value: Any, kind: Kind, text: str) -> None:
    assert Standing(text).has(value, kind)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ("Ash Ltd", TEXT, ""),
        ("", TEXT, "Ash"),
        (None, TEXT, "None"),
        (True, Kind.BOOLEAN, "true"),
        (True, NUMBER, "1"),
        ("Ash Ltd", TEXT, "Birch GmbH"),
        ("12 High Street, Leeds LS1", TEXT, CELLS),
        ("12 High Street UK", TEXT, "12 High Street\n1\n2\nUK"),
        ("12 High Street", TEXT, "12 Low Road"),
        ("USD", TEXT, "Total 12,50 €"),
        ("240305", TEXT, "INV-20240305-17"),
        ("123450", TEXT, "1234.50"),
        ("123", TEXT, "12 3"),
        ("2024-03-06", DATE, "5 March 2024"),
        ("2024-03-06", DATE, "Date 2024-03-05\nDue 2024-04-06"),
        ("2024-03-06", TEXT, "Date 2024-03-05\nDue 2024-04-06"),
        ("22.10.20", TEXT, "22.10.2026\n3 x 20"),
        (99.99, MONEY, "Total 100.00"),
        (12, NUMBER, "12.50 and 2012"),
        (-12, NUMBER, "INV-12"),
        (5, NUMBER, "2024-03-05"),
        (1_200_000, NUMBER, "1.2 million"),
        (3, NUMBER, "three"),
    ],
)
def test_a_value_in_no_form_of_the_text_stands_nowhere(value: Any, kind: Kind, text: str) -> None:
    assert not Standing(text).has(value, kind)


@pytest.mark.parametrize(("words", "stands"), [("paid  on\n3 May", True), ("paid on 4 May", False), (":", False)])
def test_words_stand_but_for_what_prints_differ_in(words: str, stands: bool) -> None:
    assert Standing("It was Paid on 3 May.").has_words(words) is stands


@pytest.mark.parametrize(
    ("value", "quote", "place"),
    [
        (99.99, "Total: 12.50", None),
        (99.99, None, None),
        (12.5, "Total: 12.50", "Total: 12.50"),
        # it occurs elsewhere: its features show that its quote does not contain it
        (7.0, "Total: 12.50", "Total: 12.50"),
        (12.5, "Total: 99.99", "12.50"),
    ],
)
def test_a_quote_gives_no_place_to_a_copied_value_that_stands_nowhere(
    value: float, quote: str | None, place: str | None
) -> None:
    text = "Total: 12.50\nTax: 7.00"
    (found,) = ground([Sought(value=value, kind=MONEY, quote=quote, is_copied=True)], text)
    assert [text[span.start : span.end] for span in found.spans] == ([] if place is None else [place])


def test_a_quote_speaks_for_a_value_that_is_concluded_from_it() -> None:
    (found,) = ground([Sought(value="invoice", kind=TEXT, quote="Rechnung")], "Rechnung 17")
    assert [(span.start, span.end) for span in found.spans] == [(0, 8)]


@given(st.lists(st.text("ab1 .,-\n€", max_size=12), max_size=6), st.text("ab1 .,-€", max_size=12))
def test_what_is_put_into_a_text_stands_in_it(parts: list[str], value: str) -> None:
    if value.strip(" .,-€"):
        assert Standing("\n".join([*parts, value.strip(), *parts])).has(value.strip(), TEXT)
