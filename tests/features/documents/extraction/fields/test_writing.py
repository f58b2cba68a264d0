"""Tests of ambiguous dates and numbers: which reading the rest of a document supports."""

from __future__ import annotations

from typing import Any

import pytest

from features.documents.extraction.fields.leaf import Kind
from features.documents.extraction.fields.writing import Meaning, meaning_of

APRIL, MARCH = "2024-04-03", "2024-03-04"


@pytest.mark.parametrize(
    ("value", "beside", "meaning"),
    [
        (APRIL, "", Meaning.OPEN),
        (APRIL, "25/04/2024", Meaning.SUPPORTED),
        (MARCH, "25/04/2024", Meaning.CONTRADICTED),
        (MARCH, "04-25-24", Meaning.SUPPORTED),
        (APRIL, "04/25/2024", Meaning.CONTRADICTED),
        (APRIL, "04/25/2024 and 25/04/2024", Meaning.OPEN),
        (APRIL, "05/06/2024, 2024-25-04, 25.04.2024, 45/04/2024", Meaning.OPEN),
        ("03/04/2024", "25/04/2024", Meaning.SUPPORTED),
        ("2025-01-01", "25/04/2024", None),
    ],
)
def test_other_dates_of_a_document_decide_the_order_of_day_and_month(value: str, beside: str, meaning: Meaning) -> None:
    for words in ("03/04/2024", "Issued 03/04/2024, due 14/05/2024"):
        assert meaning_of(value, words, Kind.DATE, f"03/04/2024\n{beside}") is meaning


@pytest.mark.parametrize("words", ["2024-03-04", "04.03.2024", "4 March 2024", "14/03/2024", "no date"])
def test_words_with_one_reading_have_no_other_meaning(words: str) -> None:
    assert meaning_of(MARCH, words, Kind.DATE, "25/04/2024") is None


@pytest.mark.parametrize(
    ("value", "words", "beside", "meaning"),
    [
        (1234, "1,234", "", Meaning.OPEN),
        (1.234, "1,234", "", Meaning.OPEN),
        (1234, "1,234", "9.50", Meaning.SUPPORTED),
        (1.234, "1,234", "9.50", Meaning.CONTRADICTED),
        (1.234, "1,234", "9,50", Meaning.SUPPORTED),
        (-1234, "-1.234", "1.234.567", Meaning.SUPPORTED),
        (1.234, "1.234", "1.234.567", Meaning.CONTRADICTED),
        (1234, "1,234", "9,50 and 9.50", Meaning.OPEN),
        (12.5, "12,5", "9.50", None),
        (1234, "1 234", "9.50", None),
        (1234, "1234", "9.50", None),
    ],
)
def test_other_numbers_of_a_document_decide_the_decimal_sign(
    value: float, words: str, beside: str, meaning: Meaning
) -> None:
    assert meaning_of(value, words, Kind.NUMBER, f"{words}\n{beside}") is meaning


@pytest.mark.parametrize(
    ("value", "beside", "meaning"),
    [
        (1234, "", Meaning.SUPPORTED),
        (1.234, "", Meaning.OPEN),
        (1234, "Net 9,50", Meaning.OPEN),
        (1.234, "Net 9.50", Meaning.CONTRADICTED),
        (1.234, "Net 9,50", Meaning.SUPPORTED),
        (1.234, "Net: 9.50", Meaning.CONTRADICTED),
        (1.234, "MwSt. v 9,50", Meaning.OPEN),
        ("$1,234", "", Meaning.SUPPORTED),
    ],
)
def test_an_amount_is_of_thousands_unless_others_say_otherwise(value: Any, beside: str, meaning: Meaning) -> None:
    assert meaning_of(value, "Total $1,234", Kind.MONEY, f"Total $1,234\n{beside}") is meaning


@pytest.mark.parametrize(
    "beside",
    ["um 10.30 Uhr", "10.30 am", "§ 3.10", "version 2.10", "kl. 10.30", "am 12.05. um zwei", "see 2.1", "V2.10.1"],
)
def test_times_sections_and_versions_decide_no_decimal_sign(beside: str) -> None:
    for value in (1234, 1.234):
        assert meaning_of(value, "1.234", Kind.NUMBER, f"Anzahl: 1.234, {beside}") is Meaning.OPEN
    assert meaning_of(1234, "1.234 EUR", Kind.MONEY, f"1.234 EUR, {beside}") is Meaning.SUPPORTED


def test_texts_have_no_readings() -> None:
    assert meaning_of("1,234", "1,234", Kind.TEXT, "9.50") is None
