"""Tests of dates and amounts as the languages of documents write them."""

from __future__ import annotations

from datetime import date

import pytest
from babel.dates import format_date

from features.documents.extraction.fields.dates import dates
from features.documents.extraction.fields.leaf import Kind
from features.documents.extraction.fields.numbers import currency
from features.documents.extraction.grounding.standing import Standing
from lab.extraction import month_names

DAY = date(2026, 3, 4)
DATES = """
4th of March 2026|4th day of March, 2026|Mar 4th 2026|2026 March 4|2026-Mar-04|04-MAR-26|4. März 2026|4. Mrz. 2026
le 4 mars 2026|4 de marzo de 2026|4 de marzo del 2026|4 marzo 2026|4 de març de 2026|4 de março de 2026|4 mrt. 2026
4 marca 2026 r.|4. března 2026|den 4 mars 2026|4. marts 2026|4. maaliskuuta 2026|4 Mart 2026|4 martie 2026
2026. március 4.|2026. 03. 04.|4 марта 2026 г.|4 березня 2026 р.|4 Μαρτίου 2026|4 MARS 2026|2026年3月4日|2026年03月04日
2026년 3월 4일|٤ مارس ٢٠٢٦|٤ آذار ٢٠٢٦|٤/٣/٢٠٢٦|4 במרץ 2026|४ मार्च २०२६|4 มีนาคม 2569|4 tháng 3 năm 2026|4 Maret 2026
"""
AMOUNTS = """
RM29.30|Rs. 29.30|₹29.30|R$ 29,30|29,30 zł|29,30zł|29.30元|合計29.30円|￥29.30|kr 29,30|kr29,30|29,30Kč|₩29.30|٢٩٫٣٠
२९.३०|CHF29.30|S$29.30|29,30лв|29,30 лв.|EUR29,30|29.30EUR|US$29.30|29,30 €|29,30руб.
"""


def forms(written: str) -> list[str]:
    return written.strip().replace("\n", "|").split("|")


@pytest.mark.parametrize("written", forms(DATES))
def test_a_date_is_found_among_words_and_other_numbers(written: str) -> None:
    found = Standing(f"Nr. 17 x {written} y 99").target.candidates(DAY.isoformat(), Kind.DATE)
    assert found.spans
    assert DAY in dates(written)


@pytest.mark.parametrize("locale", month_names.LOCALES)
def test_every_month_is_read_as_its_language_writes_it(locale: str) -> None:
    days = [date(2026, month, 4) for month in range(1, 13)]
    written = {day: [format_date(day, form, locale) for form in ("long", "medium")] for day in days}
    unread = [text for day, texts in written.items() for text in texts if day not in dates(text)]
    assert unread == (["4 d’ag. 2026"] if locale == "ca" else []), "two Latin letters are no name"


def test_the_names_of_months_are_those_of_cldr() -> None:
    assert month_names.TARGET.read_text(encoding="utf-8") == month_names.source()


@pytest.mark.parametrize(
    "written",
    [
        "10 set 12",  # a score
        "10 out 20",
        "12 pieces 2026",
        "4 Marchand 2026",
        "31 février 2026",
        "2026年13月4日",
        "Nr. 4 2026",
        "maj 2026",
    ],
)
def test_what_is_no_date_has_no_reading(written: str) -> None:
    assert dates(written) == frozenset()


def test_a_name_of_two_months_is_read_as_both() -> None:
    assert dates("4. listopada 2026") == {date(2026, 10, 4), date(2026, 11, 4)}


def test_a_thai_year_may_be_of_either_calendar() -> None:
    assert dates("4 มีนาคม 2569") == {DAY, date(2569, 3, 4)}


@pytest.mark.parametrize("written", forms(AMOUNTS))
def test_an_amount_is_found_beside_its_currency(written: str) -> None:
    standing = Standing(f"Total {written} net")
    assert standing.target.candidates("29.30", Kind.MONEY).spans
    assert not standing.target.candidates("29.31", Kind.MONEY).spans
    assert not standing.target.candidates("9.30", Kind.MONEY).spans


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1,23,456.78", "123456.78"),
        ("12,34,567", "1234567"),
        ("1'234'567.89", "1234567.89"),
        ("١٬٢٣٤٬٥٦٧٫٨٩", "1234567.89"),
        ("1 234 567,89", "1234567.89"),
    ],
)
def test_groups_of_digits_are_one_number(written: str, value: str) -> None:
    assert Standing(f"Total {written} net").target.candidates(float(value), Kind.NUMBER).spans


def test_a_currency_is_named_by_its_sign_if_one_country_uses_it() -> None:
    signs = ["RM 5", "5 zł", "5 Kč", "₹5", "R$ 5", "5 руб.", "kr 5", "Rs. 5", "5 $", "5元"]
    assert [currency(sign) for sign in signs] == ["MYR", "PLN", "CZK", "INR", "BRL", "RUB", None, None, None, "CNY"]


@pytest.mark.parametrize("text", ["ARM29.30", "XEUR5", "a5", "5kg", "v1.2", "x_5", "5Euroland"])
def test_digits_within_a_word_are_no_number(text: str) -> None:
    number = "".join(each for each in text if each.isdigit() or each == ".")
    assert not Standing(text).target.candidates(float(number), Kind.NUMBER).spans


def test_capitals_of_every_language_are_read() -> None:
    names = {name: month for month in range(1, 13) for name in month_names.names_of(month)}
    capitals = {name.upper(): month for name, month in names.items() if len(name.upper()) == len(name)}  # not of ΐ
    assert [name for name, month in capitals.items() if date(2026, month, 4) not in dates(f"4 {name} 2026")] == []
    assert dates("12 NİSAN 2024") == {date(2024, 4, 12)}
    assert dates("5 MAYIS 2024") == {date(2024, 5, 5)}


@pytest.mark.parametrize(
    ("text", "number"),
    [("4 LED 3000K", 4), ("5 led 4000 lm", 5), ("iPhone 15 Pro 2023", 15), ("Qty 4 set 2024 edition", 4)],
)
def test_a_quantity_stands_before_what_may_be_a_month(text: str, number: int) -> None:
    assert Standing(text).has(number, Kind.NUMBER)


def test_a_day_of_a_plain_date_is_no_number() -> None:
    assert not Standing("am 5. März 2024").has(5, Kind.NUMBER)


@pytest.mark.parametrize(
    ("text", "value", "other"),
    [
        ("価格 5万円", 50_000, 5),
        ("5千万円です", 50_000_000, 5_000),
        ("5천만원", 50_000_000, 5_000),
        ("5百円", 500, 5),
        ("5 万円", 50_000, 5),
        ("1.5億円", 150_000_000, 1.5),
        ("3억", 300_000_000, 3),
        ("5千円", 5_000, 5),
    ],
)
def test_a_sign_multiplies_the_number_before_it(text: str, value: float, other: float) -> None:
    standing = Standing(text)
    assert (standing.has(value, Kind.NUMBER), standing.has(other, Kind.NUMBER)) == (True, False)
    assert standing.target.candidates(value, Kind.MONEY).spans


@pytest.mark.parametrize("part", [1, 100_000_000, 5, 5_000, 50_000_000])
def test_a_number_of_several_parts_has_no_reading(part: float) -> None:
    assert not Standing("価格 1億5千万円").has(part, Kind.NUMBER)


def test_a_thousand_of_a_unit_multiplies_nothing() -> None:
    standing = Standing("重量 5千克")
    assert (standing.has(5, Kind.NUMBER), standing.has(5_000, Kind.NUMBER)) == (True, False)


def test_names_of_currencies_that_are_words_too_are_read_as_they_are_written() -> None:
    assert [currency(text) for text in ("12 ft", "12 Ft", "5 rm", "5 RM", "tl 5", "5 TL")] == [
        *(None, "HUF", None, "MYR", None, "TRY")
    ]
