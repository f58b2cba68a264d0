"""Tests of merging passes into one record."""

from __future__ import annotations

from typing import Any

from features.documents.extraction.fields.paths import Place, spell
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.grounding.spans import NOWHERE, Grounding, Span, Status
from features.documents.extraction.passes.findings import Finding, Reading
from features.documents.extraction.passes.merging import merge, record
from tests.features.documents.extraction.fields.builders import INVOICE

SCHEMA = FieldSchema.parse(INVOICE)


def finding(place: Place, value: Any, at: int | None = None, status: Status = Status.EXACT) -> Finding:
    grounding = NOWHERE if at is None else Grounding(status=status, spans=(Span(at, at + 3),), likeness=1.0)
    return Finding(reading=Reading(place=place, value=value), grounding=grounding)


def line(index: int, article: str | None, amount: float | None, at: int | None = None) -> list[Finding]:
    return [
        finding(("lines", index, "article"), article, at),
        finding(("lines", index, "amount"), amount, None if at is None else at + 10),
    ]


def merged_record(*passages: list[Finding]) -> dict[str, Any]:
    return record(SCHEMA, merge(SCHEMA, passages))


def test_equal_values_keep_all_their_spans() -> None:
    (total,) = merge(SCHEMA, [[finding(("total",), 12.5, 10)], [finding(("total",), 12.50, 40)]])
    assert (total.value, len(total.candidates)) == (12.5, 1)
    assert total.candidates[0].spans == (Span(10, 13), Span(40, 43))


def test_values_in_conflict_stay_candidates_with_the_oftener_found_one_first() -> None:
    passages = [[finding(("total",), 1.0, 10)], [finding(("total",), 2.0, 20)], [finding(("total",), 2.0, 30)]]
    (total,) = merge(SCHEMA, passages)
    assert [candidate.value for candidate in total.candidates] == [2.0, 1.0]


def test_a_value_that_stands_somewhere_goes_before_one_that_does_not() -> None:
    passages = [[finding(("total",), 1.0)], [finding(("total",), 1.0)], [finding(("total",), 2.0, 20, Status.FUZZY)]]
    assert merged_record(*passages)["total"] == 2.0


def test_null_counts_only_where_nobody_found_a_value() -> None:
    assert merged_record([finding(("total",), None)], [finding(("total",), 2.0)])["total"] == 2.0
    assert merged_record([finding(("total",), None)], [finding(("total",), None)])["total"] is None


def test_items_with_the_same_key_are_one() -> None:
    fields = merged_record(
        [*line(0, "Nut", 1.0, 10), *line(1, "Bolt", 2.0, 40)],
        [*line(0, "BOLT", 2.0, 40), *line(1, "Saw", 3.0, 70), finding(("lines", 0, "quantity"), 5)],
    )
    assert fields["lines"] == [
        {"article": "Nut", "quantity": None, "amount": 1.0},
        {"article": "Bolt", "quantity": 5, "amount": 2.0},
        {"article": "Saw", "quantity": None, "amount": 3.0},
    ]


def test_a_key_that_comes_twice_in_one_passage_is_two_items() -> None:
    passage = [*line(0, "Nut", 1.0, 10), *line(1, "Nut", 2.0, 40)]
    assert [item["amount"] for item in merged_record(passage)["lines"]] == [1.0, 2.0]
    assert [item["amount"] for item in merged_record(passage, passage)["lines"]] == [1.0, 2.0]


def test_items_without_a_key_are_one_only_where_they_stand_at_the_same_place() -> None:
    rows = [*line(0, None, 7.0, 10), *line(1, None, 7.0, 50)]
    assert len(merged_record(rows, line(0, None, 7.0, 50))["lines"]) == 2
    assert len(merged_record(rows, line(0, None, 7.0, 90))["lines"]) == 3
    assert len(merged_record(line(0, None, 7.0), line(0, None, 7.0))["lines"]) == 1


def test_plain_values_of_an_array_are_joined() -> None:
    one = [finding(("tags", 0), "paid", 10), finding(("tags", 1), "late", 20)]
    other = [finding(("tags", 0), "late", 20), finding(("tags", 1), "new", 30)]
    assert merged_record(one, other)["tags"] == ["paid", "late", "new"]


def test_a_record_has_every_leaf_and_every_array() -> None:
    fields = merged_record([finding(("net",), 1.0)])
    assert set(fields) == set(INVOICE["properties"])
    assert (fields["lines"], fields["tags"], fields["vendor"]) == ([], [], {"name": None, "iban": None})


def test_entries_come_item_by_item_in_the_order_of_the_schema() -> None:
    merged = merge(
        SCHEMA, [[finding(("total",), 1.0), *line(1, "Nut", 1.0, 40), *line(0, "Saw", 2.0, 10), finding(("net",), 1.0)]]
    )
    assert [spell(each.place) for each in merged] == [
        *("net", "total"),
        *("lines[0].article", "lines[0].amount", "lines[1].article", "lines[1].amount"),
    ]


def test_an_item_has_its_fields_in_the_order_of_the_schema() -> None:
    inner = {"a": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}, "z": {"type": "string"}}
    rows = {"type": "array", "items": {"type": "object", "properties": inner}}
    schema = FieldSchema.parse({"type": "object", "properties": {"rows": rows}})
    found = merge(schema, [[finding(("rows", 0, "z"), "x"), finding(("rows", 0, "tags", 0), "y")]])
    (item,) = record(schema, found)["rows"]
    assert list(item.items()) == [("a", None), ("tags", ["y"]), ("z", "x")]
