"""Tests of validators, the second reading, and asking again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from features.documents.extraction.fields.groups import groups
from features.documents.extraction.fields.leaf import Kind
from features.documents.extraction.fields.paths import spell
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.passes.answers import read_answer
from features.documents.extraction.passes.asking_again import (
    CONTRADICTED,
    MISSING,
    UNGROUNDED,
    UNREADABLE,
    doubts,
    settle,
)
from features.documents.extraction.passes.check_digits import is_iban, is_vat_id
from features.documents.extraction.passes.findings import Agreement, Finding, ground_readings, relocate
from features.documents.extraction.passes.merging import merge, record
from features.documents.extraction.passes.second_reading import read_second, with_agreements
from features.documents.extraction.passes.validators import violations
from tests.features.documents.extraction.fields.builders import INVOICE

SCHEMA = FieldSchema.parse(INVOICE)
(GROUP,) = groups(SCHEMA)
TEXT = (
    "Invoice R-17 of Miller Ltd, issued 05.03.2024, net 100.00, tax 19.00, total 119.00 EUR. Nut 2 60.00 Bolt 1 40.00"
)


def found(fields: dict[str, Any], text: str = TEXT) -> list[Finding]:
    return ground_readings(read_answer(json.dumps(fields), GROUP, quotes=False).readings, GROUP, text)


@pytest.mark.parametrize(
    "text", ["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432", "FR1420041010050500013M02606"]
)
def test_an_iban_is_checked_by_its_digits_and_length(text: str) -> None:
    assert is_iban(text)
    assert not is_iban(text[:-1] + ("1" if text[-1] != "1" else "2"))
    assert not is_iban(text + "00")


@pytest.mark.parametrize("text", ["DE136695976", "ATU13585627", "BE0411905847", "FR40303265045", "IT00743110157"])
def test_a_vat_number_is_checked_by_its_digits(text: str) -> None:
    assert is_vat_id(text)
    assert not is_vat_id(text[:-1] + str((int(text[-1]) + 1) % 10))


def test_a_vat_number_of_another_country_is_checked_by_its_form() -> None:
    assert is_vat_id("NL 8040.37.558 B01")
    assert not is_vat_id("ZZ123456789")


def test_what_speaks_against_values_is_told_by_place() -> None:
    fields = {
        "number": None,
        "vendor": {"name": "Miller", "iban": "DE00"},
        "issued": "2024-13-01",
        "lines": [{"article": "Nut", "quantity": 0, "amount": 1}, {"article": "Bolt", "quantity": 1, "amount": 2}],
        "net": 4,
        "tax": 1,
        "total": 5,
    }
    told = {(spell(each.place) if each.place else "", each.reason) for each in violations(SCHEMA, fields)}
    assert told == {
        ("vendor.iban", "its check digits do not fit an IBAN"),
        ("issued", "it is no day of the calendar"),
        ("lines[0].quantity", "0 is below the least of 1"),
        ("", "the check sum(lines.amount) == net fails"),
    }
    check = next(each for each in violations(SCHEMA, fields) if each.place is None)
    assert check.is_about(("lines", "*", "amount"), ("lines", 1, "amount"))
    assert not check.is_about(("total",), ("total",))


def test_a_second_reading_agrees_by_value_and_place() -> None:
    second = read_second(
        json.dumps(
            {
                "values": [
                    {"kind": "text", "value": "Miller Ltd", "quote": "of Miller Ltd"},
                    {"kind": "date", "value": "2024-03-05", "quote": "05.03.2024"},
                    {"kind": "money", "value": "100.00", "quote": "net 100.00"},
                    {"kind": "money", "value": "119.00", "quote": "total 119.00"},
                    {"kind": "colour", "value": "red", "quote": "red"},
                ]
            }
        )[:-20],
        TEXT,
    )
    assert [each.kind for each in second] == [Kind.TEXT, Kind.DATE, Kind.MONEY, Kind.MONEY]
    findings = found({"vendor": {"name": "Miller"}, "issued": "2024-03-05", "net": 119.0, "tax": 19.0, "due": None})
    told = {spell(each.place): each.agreement for each in with_agreements(findings, second, GROUP)}
    assert told == {
        "vendor.name": Agreement.AGREES,
        "issued": Agreement.AGREES,
        "net": Agreement.AGREES,
        "tax": Agreement.SILENT,
        "due": Agreement.SILENT,
    }


def test_a_second_reading_may_have_another_value_there_or_the_same_elsewhere() -> None:
    text = "due 3 May, again 3 May, paid 4 items"
    schema = FieldSchema.parse(
        {"type": "object", "properties": {"count": {"type": "number"}, "day": {"type": "number"}}}
    )
    (group,) = groups(schema)
    answer = read_answer(
        '{"count": {"value": 4, "quote": "4 items"}, "day": {"value": 3, "quote": "due 3 May"}}', group
    )
    second = read_second(
        '{"values": [{"kind": "number", "value": "5", "quote": "paid 4 items"},'
        ' {"kind": "number", "value": "3", "quote": "again 3 May"}]}',
        text,
    )
    findings = ground_readings(answer.readings, group, text)
    told = [each.agreement for each in with_agreements(findings, second, group)]
    assert told == [Agreement.DIFFERS, Agreement.ELSEWHERE]


def test_what_is_missing_ungrounded_contradicted_or_invalid_is_asked_again() -> None:
    text = json.dumps(
        {"number": "R-18", "vendor": {"name": "Miller Ltd", "iban": "DE00"}, "net": 100.0, "tax": 19.0, "paid": 10**30}
    )
    answer = read_answer(text, GROUP, quotes=False)
    findings = ground_readings(answer.readings, GROUP, TEXT + " DE00")
    findings = [replace(each, agreement=Agreement.DIFFERS if each.place == ("net",) else None) for each in findings]
    wrong = violations(SCHEMA, json.loads(text))
    asked = doubts(GROUP, answer, findings, wrong)
    assert asked["paid",] == UNREADABLE
    assert asked["number",] == UNGROUNDED
    assert asked["net",] == CONTRADICTED
    assert asked["total",] == MISSING
    assert "IBAN" in asked["vendor", "iban"]
    assert not {("tax",), ("vendor", "name")} & set(asked)
    assert [leaf.path for leaf in GROUP.restrict([SCHEMA.leaf(path) for path in asked]).leaves] == list(asked)


def test_an_array_without_a_key_is_asked_again_as_a_whole() -> None:
    schema = FieldSchema.parse(
        {
            "type": "object",
            "properties": {
                "rows": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
                }
            },
        }
    )
    (group,) = groups(schema)
    answer = read_answer('{"rows": [{"a": "here", "b": "nowhere"}]}', group, quotes=False)
    first = ground_readings(answer.readings, group, "here there")
    asked = doubts(group, answer, first)
    assert set(asked) == {("rows", "*", "a"), ("rows", "*", "b")}
    second = read_answer('{"rows": [{"a": "here", "b": "there"}]}', group, quotes=False)
    again = ground_readings(second.readings, group, "here there")
    assert record(schema, merge(schema, [settle(group, first, again, asked), again])) == {
        "rows": [{"a": "here", "b": "there"}]
    }


def test_the_second_answer_replaces_what_was_found_nowhere_and_joins_items_by_key() -> None:
    first = found({"number": "R-18", "net": 100.0, "lines": [{"article": "Nut", "quantity": 2, "amount": 61.0}]})
    again = found({"number": None, "lines": [{"article": "Nut", "quantity": None, "amount": 60.0}]})
    again = [each for each in again if each.path != ("lines", "*", "quantity")]
    asked = [("number",), ("lines", "*", "amount")]
    fields = record(SCHEMA, merge(SCHEMA, [settle(GROUP, first, again, asked), again]))
    assert (fields["number"], fields["net"]) == (None, 100.0)
    assert fields["lines"] == [{"article": "Nut", "quantity": 2, "amount": 60.0}]


def test_spans_are_moved_to_the_text_of_the_document() -> None:
    (moved,) = relocate(found({"number": "R-17"}), lambda start, end: (start + 100, end + 100))
    assert TEXT[moved.spans[0].start - 100 : moved.spans[0].end - 100] == "R-17"
