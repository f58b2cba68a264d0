"""Tests of locating quotes and values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.documents.extraction.fields.leaf import Kind
from features.documents.extraction.grounding.align import Sought, align, ground
from features.documents.extraction.grounding.spans import Grounding, Status

TEXT = """Invoice No. 4711
ACME Corp. & Of\ufb01ce “North”
Date: 05.03.2024, due 2024-04-05
Widget     2   10,00
Gadget     2   20,00
Net 1.234,50 EUR, con-
tinued 2024 on page 12
"""


def shown(grounding: Grounding, text: str = TEXT) -> str | None:
    return text[grounding.spans[0].start : grounding.spans[0].end] if grounding.spans else None


@pytest.mark.parametrize(
    ("quote", "stands", "status"),
    [
        ("Invoice No. 4711", "Invoice No. 4711", Status.EXACT),
        ("invoice  no. 4711", "Invoice No. 4711", Status.NORMALISED),
        ('OFFICE "north"', "Of\ufb01ce “North”", Status.NORMALISED),
        ("Net 1234,50 EUR", "Net 1.234,50 EUR", Status.NORMALISED),
        ("continued", "con-\ntinued", Status.NORMALISED),
        ("Widget 2 10,00", "Widget     2   10,00", Status.NORMALISED),
        ("Invoice, No 4711", "Invoice No. 4711", Status.FUZZY),
        ("ACME, Corp.;", "ACME Corp.", Status.FUZZY),
        ("Invoyce No. 4711", "Invoice No. 4711", Status.FUZZY),
        ("Invoise No. 4711", "Invoice No. 4711", Status.FUZZY),
        ("Invoice No. 4712", None, Status.NONE),
        ("Net 1.234,60 EUR", None, Status.NONE),
        ("Sprocket Brothers", None, Status.NONE),
        ("4712", None, Status.NONE),
        ("1.234,60", None, Status.NONE),
        ("71", None, Status.NONE),
        ("34,50", None, Status.NONE),
        ("4", None, Status.NONE),
        ("act", None, Status.NONE),
        ("", None, Status.NONE),
        ("  ", None, Status.NONE),
    ],
)
def test_a_quote_is_found_in_the_strictest_way_that_finds_it(quote: str, stands: str | None, status: Status) -> None:
    (found,) = align([quote], TEXT)
    assert (shown(found), found.status) == (stands, status)
    assert (found.likeness == 1.0) == (status in (Status.EXACT, Status.NORMALISED))
    assert (found.likeness == 0.0) == (status is Status.NONE)


@pytest.mark.parametrize(
    ("quote", "text", "stands"),
    [
        ("-5,00", "Discount 5,00 EUR", None),
        ("Discount -5,00", "Discount 5,00 EUR", None),
        ("Discount 5,00", "Discount: -5,00 EUR", None),
        ("Discount -5,00", "Discount: −5,00 EUR", "Discount: −5,00"),
        ("100.00", "-100.00", None),
        ("100.00", "Balance (-100.00)", None),
        ("100.00", "Credit 100.00-", None),
        ("Credit 100.00-", "Credit; 100.00", None),
        ("Discount 5,00", "Diskount –5,00 EUR", None),
        ("-100.00", "Balance -100.00 EUR", "-100.00"),
        ("100.00", "-100.00 and 100.00", "100.00"),
        ("4711", "Invoice-4711", "4711"),
        ("7", "5-7 pieces", "7"),
        ("4 pieces", "- 4 pieces", "4 pieces"),
        ("2024", "2024-\n2025", "2024"),
    ],
)
def test_a_number_is_found_with_its_own_sign_alone(quote: str, text: str, stands: str | None) -> None:
    (found,) = align([quote], text)
    assert shown(found, text) == stands


def test_repeated_quotes_take_their_places_in_order() -> None:
    found = align(["Widget", "2", "10,00", "Gadget", "2", "20,00"], TEXT)
    starts = [each.spans[0].start for each in found]
    assert starts == sorted(starts)
    assert starts[1] != starts[4]


def test_a_quote_before_one_that_stands_once_takes_the_place_before_it() -> None:
    text = "total 5\n" * 3 + "here\n" + "total 5\n" * 3
    before, _, after = align(["total 5", "here", "total 5"], text)
    assert before.spans[0].start < text.index("here") < after.spans[0].start


def test_fields_that_are_asked_in_another_order_keep_their_only_places() -> None:
    found = align(["Net 1.234,50 EUR", "Invoice No. 4711"], TEXT)
    assert [shown(each) for each in found] == ["Net 1.234,50 EUR", "Invoice No. 4711"]


@pytest.mark.parametrize(
    ("value", "kind", "stands", "status"),
    [
        (1234.5, Kind.MONEY, "1.234,50", Status.NORMALISED),
        ("EUR 1234.50", Kind.MONEY, "1.234,50", Status.NORMALISED),
        (4711, Kind.NUMBER, "4711", Status.EXACT),
        (10, Kind.NUMBER, "10,00", Status.NORMALISED),
        ("2024-03-05", Kind.DATE, "05.03.2024", Status.NORMALISED),
        ("2024-04-05", Kind.DATE, "2024-04-05", Status.EXACT),
        ("acme corp", Kind.TEXT, "ACME Corp", Status.NORMALISED),
        (34.5, Kind.NUMBER, None, Status.NONE),
        ("2024-03-06", Kind.DATE, None, Status.NONE),
        (True, Kind.BOOLEAN, None, Status.NONE),
        (None, Kind.TEXT, None, Status.NONE),
    ],
)
def test_a_value_without_a_quote_is_found_in_any_form(
    value: Any, kind: Kind, stands: str | None, status: Status
) -> None:
    (found,) = ground([Sought(value=value, kind=kind)], TEXT)
    assert (shown(found), found.status) == (stands, status)


@pytest.mark.parametrize(
    ("value", "text", "stands"),
    [
        (5, "Date: 2024-04-05", None),
        (5, "Date: 05/03/2024, 3 pieces", None),
        (3, "Date: 05/03/2024, 3 pieces", "3"),
        (5, "On 5 March 2024 there were 5.00", "5.00"),
        (2024, "Date: 2024-04-05", "2024"),
        (20240405, "No. 20240405", "20240405"),
        (5, "Parts 99/05/2024", "05"),
    ],
)
def test_a_number_is_no_day_or_month_of_a_date(value: int, text: str, stands: str | None) -> None:
    (found,) = ground([Sought(value=value, kind=Kind.NUMBER)], text)
    assert shown(found, text) == stands


def test_numbers_in_columns_are_found_one_by_one() -> None:
    text = "5 100 200\n"
    found = ground([Sought(value=value, kind=Kind.NUMBER) for value in (5, 100, 200)], text)
    assert [shown(each, text) for each in found] == ["5", "100", "200"]


@pytest.mark.parametrize("sign", [",", "'", "’", "\u00a0", "\u202f"])
@pytest.mark.parametrize("quote", ["234.50", "1", None])
def test_no_part_of_a_number_with_thousands_is_found_in_it(sign: str, quote: str | None) -> None:
    text = f"Total 1{sign}234.50 CHF"
    (found,) = ground([Sought(value=float(quote or "234.50"), kind=Kind.MONEY, quote=quote)], text)
    assert shown(found, text) is None


def test_a_quote_that_is_nowhere_gives_way_to_the_value_itself() -> None:
    (found,) = ground([Sought(value=1234.5, kind=Kind.MONEY, quote="the amount of the invoice")], TEXT)
    assert shown(found) == "1.234,50"


@pytest.mark.parametrize(
    ("value", "stands"),
    [
        ("Miller Trading Ltd", "Miller Trading Ltd"),
        ("Miler Trading Ltd", "Miller Trading Ltd"),
        ("Miller Trading Lid", "Miller Trading Ltd"),
        ("Miller Catering Ltd", None),
        ("Mueller Trading Ltd", None),
        ("Miller Trading Holding Ltd", None),
        ("Delaware", None),
    ],
)
@pytest.mark.parametrize("is_quoted", [True, False])
def test_a_value_with_another_word_is_another_value(value: str, stands: str | None, is_quoted: bool) -> None:
    text = "Miller Trading Ltd\nGuests declare the value of their goods.\n"
    quote = value if is_quoted else None
    (found,) = ground([Sought(value=value, kind=Kind.TEXT, quote=quote, is_copied=True)], text)
    assert shown(found, text) == stands


@pytest.mark.parametrize(
    ("value", "stands"),
    [
        ("Smith and Sons", "Smith & Sons"),
        ("Smith or Sons", None),
        ("Bach & Söhne", "Bach und Söhne"),
        ("Bach & von Söhne", None),
    ],
)
def test_the_sign_for_and_is_that_word(value: str, stands: str | None) -> None:
    text = "Smith & Sons\nBach und Söhne\n"
    (found,) = ground([Sought(value=value, kind=Kind.TEXT, is_copied=True)], text)
    assert shown(found, text) == stands


@pytest.mark.parametrize(
    ("quote", "stands"), [("Net 1.234,50", True), ("Amount still to be paid 1.234,50", False), (None, None)]
)
def test_a_value_says_whether_its_quote_is_in_the_text(quote: str | None, stands: bool | None) -> None:
    (found,) = ground([Sought(value=1234.5, kind=Kind.MONEY, quote=quote, is_copied=True)], TEXT)
    assert (shown(found), found.quote_stands) == ("Net 1.234,50" if stands else "1.234,50", stands)


def test_a_value_that_equals_another_of_a_second_type_is_not_taken_for_it() -> None:
    text = "1 item"
    number, yes = ground([Sought(value=1, kind=Kind.NUMBER), Sought(value=True, kind=Kind.NUMBER)], text)
    assert (shown(number, text), shown(yes, text)) == ("1", None)


@given(st.text(max_size=80), st.lists(st.text(max_size=12), max_size=5))
def test_spans_lie_in_the_text_whatever_it_is(text: str, quotes: list[str]) -> None:
    for found in align(quotes, text):
        assert all(0 <= span.start < span.end <= len(text) for span in found.spans)
        assert bool(found.spans) == (found.status is not Status.NONE)


@given(st.text(min_size=1, max_size=80), st.data())
def test_what_stands_alone_in_a_text_is_found_there(text: str, data: st.DataObject) -> None:
    words = text.split()
    if words:
        word = data.draw(st.sampled_from(words))
        (found,) = align([word], text)
        assert word in (shown(found, text), None) or found.status is not Status.EXACT
        assert found.status is Status.EXACT
