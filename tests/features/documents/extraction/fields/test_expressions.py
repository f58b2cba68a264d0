"""Tests of checks between fields."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.documents.extraction.errors import SchemaError
from features.documents.extraction.fields.expression_parser import MAX_DEPTH, parse_expression

LEAVES: list[tuple[str, ...]] = [("lines", "*", "quantity"), ("lines", "*", "price"), ("lines", "*", "amount")]
LEAVES += [("net",), ("tax",), ("vendor", "name"), ("issued",), ("due",), ("tags", "*")]
FIELDS: dict[str, Any] = {
    "lines": [{"quantity": 2, "price": 1.1, "amount": 2.2}, {"quantity": 3, "price": 0.333, "amount": 1.0}],
    "net": 3.2,
    "tax": None,
    "vendor": {"name": "Miller"},
    "issued": "2024-01-31",
    "due": "2024-03-01",
    "tags": [],
}


def holds(text: str, fields: dict[str, Any] = FIELDS) -> bool | None:
    return parse_expression(text, LEAVES).holds(fields)


@pytest.mark.parametrize(
    "text",
    [
        "sum(lines.amount) == net",
        "all(lines.quantity * lines.price == lines.amount)",
        "len(lines) == 2 and len(tags) == 0",
        "issued < due",
        "due - issued == 30",
        "issued + 30 == '2024-03-01'",
        "not net < 3",
        "abs(-net) == net",
        "1 + 2 * 3 - 8 / 4 == 5",
        "(1 + 2) * 3 == 9",
        "vendor.name == 'Miller' or net == 0",
        "net >= 3.2 and net <= 3.204",
        "tax == 3 or net > 0",
        "all(lines.amount < 3)",
    ],
)
def test_a_check_that_is_true_holds_and_its_contrary_does_not(text: str) -> None:
    assert holds(text) is True
    assert holds(f"not ({text})") is False


@pytest.mark.parametrize(
    "text",
    [
        "net + tax == 3",
        "tax == 3",
        "net / 0 == 1",
        "net == vendor.name",
        "net",
        "sum(vendor.name) == 1",
        "lines.amount == net",
    ],
)
def test_nothing_is_told_where_a_value_is_missing_or_of_another_kind(text: str) -> None:
    assert holds(text) is None


def test_half_a_cent_is_no_difference_and_a_cent_is_one() -> None:
    assert holds("net == 3.204") is True
    assert holds("net == 3.21") is False


def test_items_without_a_value_make_a_sum_unknown() -> None:
    assert holds("sum(lines.amount) == 1", {"lines": [{"amount": 1}, {"amount": None}]}) is None
    assert holds("sum(lines.amount) == 0", {"lines": []}) is True


def test_numbers_of_any_size_break_nothing() -> None:
    assert holds("net * net * net > 1", {"net": 1e308}) is not False
    assert holds("issued + net == due", {"issued": "2024-01-01", "net": 1e18, "due": "2024-01-01"}) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "something is missing at its end"),
        ("net ==", "something is missing at its end"),
        ("sum(net", "a bracket is not closed"),
        ("net net", "'net' is not understood after"),
        ("nett == 1", "'nett' is no field; there are"),
        ("exec('x') == 1", "'exec' is no field"),
        ("net; 1", "';' is no sign"),
        ("net == * 2", "a value is missing before"),
        ("net == and", "a value is missing before 'and'"),
        ("(" * 30 + "net" + ")" * 30, f"nested deeper than {MAX_DEPTH}"),
        ("1 + " * 200 + "1", "over 500 characters"),
    ],
)
def test_what_is_no_check_is_refused_in_words(text: str, reason: str) -> None:
    with pytest.raises(SchemaError) as refused:
        parse_expression(text, LEAVES)
    assert reason in str(refused.value)


@given(st.text(alphabet="netsumall().lines=<>+-*/ '\"0123456789", max_size=60))
def test_any_text_is_a_check_or_is_refused(text: str) -> None:
    try:
        check = parse_expression(text, LEAVES)
    except SchemaError:
        return
    assert check.holds(FIELDS) in (True, False, None)


def test_a_check_tells_which_fields_it_is_about() -> None:
    check = parse_expression("sum(lines.amount) == net or net == 0", LEAVES)
    assert check.paths() == (("lines", "*", "amount"), ("net",))
