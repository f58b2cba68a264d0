"""Tests of normal forms that equal values share."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.documents.extraction.fields.dates import dates
from features.documents.extraction.fields.leaf import Kind
from features.documents.extraction.fields.numbers import currency, numbers
from features.documents.extraction.fields.values import is_same, normal_text


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("1234.5", ["1234.5"]),
        ("1,234.50", ["1234.50"]),
        ("1.234,50", ["1234.50"]),
        ("1 234,50 €", ["1234.50"]),
        ("1\u202f234,50", ["1234.50"]),
        ("CHF 1'234.50", ["1234.50"]),
        ("1,234", ["1234", "1.234"]),
        ("1.234", ["1234", "1.234"]),
        ("1.234.567", ["1234567"]),
        ("12,5", ["12.5"]),
        ("EUR 12,-", ["12"]),
        ("-3.20", ["-3.20"]),
        ("−3,20", ["-3.20"]),
        ("(3.20)", ["-3.20"]),
        ("3.20-", ["-3.20"]),
        ("$ 19", ["19"]),
        ("19 %", ["19", "0.19"]),
        (".5", ["0.5"]),
        ("0.125", ["0.125"]),
        ("00,125", ["0.125"]),
        ("1,23,4", []),
        ("12.34.56", []),
        ("3 of 4", []),
        ("none", []),
        ("", []),
    ],
)
def test_a_number_has_every_reading_that_its_text_allows(text: str, meant: list[str]) -> None:
    assert numbers(text) == {Decimal(value) for value in meant}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2024-03-05", [(2024, 3, 5)]),
        ("2024-03-05T10:00:00Z", [(2024, 3, 5)]),
        ("2024/03/05", [(2024, 3, 5)]),
        ("20240305", [(2024, 3, 5)]),
        ("05.03.2024", [(2024, 3, 5)]),
        ("5. 3. 24", [(2024, 3, 5)]),
        ("5.3.71", [(1971, 3, 5)]),
        ("05/03/2024", [(2024, 3, 5), (2024, 5, 3)]),
        ("25/03/2024", [(2024, 3, 25)]),
        ("5. März 2024", [(2024, 3, 5)]),
        ("5 Mrz. 2024", [(2024, 3, 5)]),
        ("the 5th of March, 2024", [(2024, 3, 5)]),
        ("March 5th, 2024", [(2024, 3, 5)]),
        ("Dec 31 1999", [(1999, 12, 31)]),
        ("05-MAY-2024", [(2024, 5, 5)]),
        ("Wien, am 1. Jänner 2023", [(2023, 1, 1)]),
        ("31.02.2024", []),
        ("from 1.1.2024 to 2.1.2024", []),
        ("soon", []),
    ],
)
def test_a_day_has_every_reading_that_its_text_allows(text: str, meant: list[tuple[int, int, int]]) -> None:
    assert dates(text) == {date(*parts) for parts in meant}


@given(st.decimals(min_value=-10_000_000, max_value=10_000_000, places=2))
def test_an_amount_is_the_same_in_english_and_german(amount: Decimal) -> None:
    english = f"{amount:,.2f}"
    german = english.translate(str.maketrans(",.", ".,"))
    assert amount in numbers(english)
    assert amount in numbers(german)
    assert is_same(float(amount), f"EUR {german}", Kind.MONEY)


@given(st.dates(min_value=date(1970, 1, 1), max_value=date(2069, 12, 31)))
def test_a_day_is_the_same_in_each_of_its_forms(day: date) -> None:
    german = f"{day.day}.{day.month}.{day.year % 100:02}"
    for text in (
        day.isoformat(),
        f"{day:%d.%m.%Y}",
        f"{day:%m/%d/%Y}",
        f"{day:%d/%m/%Y}",
        f"{day:%B} {day.day}, {day.year}",
        german,
    ):
        assert day in dates(text), text


@given(st.text(max_size=40))
def test_no_text_breaks_the_normal_forms(text: str) -> None:
    for kind in Kind:
        assert is_same(text, text, kind) in (True, False)
    assert normal_text(normal_text(text)) == normal_text(text)


def test_amounts_are_not_the_same_in_two_currencies() -> None:
    assert is_same("12,00 EUR", "€ 12.00", Kind.MONEY)
    assert is_same(12, "€ 12.00", Kind.MONEY)
    assert not is_same("USD 12", "€ 12.00", Kind.MONEY)
    assert (currency("US$ 5"), currency("5 $"), currency("5 fr."), currency("of 5")) == ("USD", None, "CHF", None)


def test_texts_are_the_same_but_for_what_two_prints_differ_in() -> None:
    assert is_same("Of\ufb01ce  “North”", 'OFFICE "North".', Kind.TEXT)
    assert not is_same("Office North", "Office South", Kind.TEXT)
    assert is_same("ja", True, Kind.BOOLEAN)
    assert not is_same(None, "0", Kind.NUMBER)
    assert is_same(None, None, Kind.NUMBER)


@pytest.mark.parametrize("value", [1e308, -1e30, 10**400, float("inf"), float("nan"), "9" * 30, "1" * 28 + ".123"])
def test_no_number_is_too_large_to_be_compared(value: float | str) -> None:
    for kind in Kind:
        assert is_same(value, 1, kind) is False
