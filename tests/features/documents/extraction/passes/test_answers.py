"""Tests of reading answers: complete, truncated anywhere, or not quite as requested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.extracting.outputs import Outputs, write_outputs
from features.documents.extraction.fields.groups import Group, groups
from features.documents.extraction.fields.paths import ITEM, build, spell
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.passes.answers import read_answer
from features.documents.extraction.passes.partial_json import Node, parse
from tests.features.documents.extraction.fields.builders import INVOICE

SCHEMA = FieldSchema.parse(INVOICE)
(GROUP,) = groups(SCHEMA)
FIELDS: dict[str, Any] = {
    "number": "R-1",
    "vendor": {"name": "Miller", "iban": None},
    "issued": "2024-01-02",
    "due": None,
    "currency": "EUR",
    "lines": [{"article": "Nut", "quantity": 2, "amount": 1.5}, {"article": "Bolt", "quantity": 1, "amount": 2.0}],
    "tags": ["paid"],
    "net": 3.5,
    "tax": None,
    "total": 3.5,
    "paid": True,
}


def quoted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: quoted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [quoted(item) for item in value]
    return None if value is None else {"value": value, "quote": f"is {value}"}


def values_of(node: Node | None) -> Any:
    assert node is not None
    if isinstance(node.value, dict):
        return {key: values_of(inner) for key, inner in node.value.items()}
    return [values_of(item) for item in node.value] if isinstance(node.value, list) else node.value


@pytest.mark.parametrize("indent", [None, 2])
def test_a_whole_answer_is_read_with_its_quotes(indent: int | None) -> None:
    answer = read_answer(json.dumps(quoted(FIELDS), indent=indent), GROUP)
    assert answer.missing == ()
    assert build([(reading.place, reading.value) for reading in answer.readings]) == FIELDS
    assert {reading.quote for reading in answer.readings if reading.place[0] == "total"} == {"is 3.5"}


def test_a_plain_answer_is_read_without_quotes() -> None:
    answer = read_answer("Here it is:\n```json\n" + json.dumps(FIELDS) + "\n```", GROUP, quotes=False)
    assert answer.missing == ()
    assert build([(reading.place, reading.value) for reading in answer.readings]) == FIELDS


def test_a_reading_says_where_its_value_stands_in_the_answer() -> None:
    text = json.dumps(quoted(FIELDS))
    for reading in read_answer(text, GROUP).readings:
        expected = reading.value if isinstance(reading.value, str) else json.dumps(reading.value)
        assert text[reading.answer_start : reading.answer_end] == expected


def test_of_an_answer_cut_anywhere_what_is_whole_is_kept_and_what_is_missing_is_named() -> None:
    text = json.dumps(quoted(FIELDS))
    whole = {(reading.place, reading.value) for reading in read_answer(text, GROUP).readings}
    scalars = {leaf.path for leaf in GROUP.leaves if ITEM not in leaf.path}
    for length in range(len(text)):
        answer = read_answer(text[:length], GROUP)
        assert {(reading.place, reading.value) for reading in answer.readings} <= whole
        read = {reading.path for reading in answer.readings if ITEM not in reading.path}
        assert read | (set(answer.missing) & scalars) == scalars
        assert not read & set(answer.missing)


def test_an_array_that_is_cut_is_missing_though_its_first_items_are_kept() -> None:
    text = json.dumps(quoted(FIELDS))
    answer = read_answer(text[: text.index("Bolt")], GROUP)
    assert ("lines", 0, "article") in {reading.place for reading in answer.readings}
    assert {spell(path) for path in answer.missing} >= {"lines[].article", "lines[].amount", "tags[]", "total"}


def test_a_value_whose_quote_is_cut_is_kept_without_it() -> None:
    text = json.dumps(quoted(FIELDS))
    answer = read_answer(text[: text.index("is R-1") + 3], GROUP)
    assert [(reading.value, reading.quote) for reading in answer.readings] == [("R-1", None)]


@pytest.mark.parametrize(
    ("field", "given", "read"),
    [
        ("net", "1,234.50", 1234.5),
        ("net", "1,234", None),
        ("net", True, None),
        ("net", [1], None),
        ("net", 1e999, None),
        ("net", 10**400, None),
        ("currency", "GBP", None),
        ("paid", "ja", True),
        ("paid", "perhaps", None),
        ("number", 12, None),
    ],
)
def test_a_value_of_another_type_is_read_where_it_is_clear_and_else_missing(field: str, given: Any, read: Any) -> None:
    answer = read_answer(json.dumps({**FIELDS, field: given}), GROUP, quotes=False)
    assert {reading.value for reading in answer.readings if reading.place == (field,)} == ({read} if read else set())
    assert ((field,) in answer.missing) == (read is None)


def test_a_text_of_blanks_is_null() -> None:
    answer = read_answer(json.dumps({**FIELDS, "number": "  "}), GROUP, quotes=False)
    assert next(reading for reading in answer.readings if reading.place == ("number",)).value is None


@pytest.mark.parametrize("text", ["", "no JSON at all", "[]", "{", '{"number"', "{]"])
def test_of_an_answer_without_an_object_everything_is_missing(text: str) -> None:
    answer = read_answer(text, GROUP)
    assert (answer.readings, set(answer.missing)) == ((), {leaf.path for leaf in GROUP.leaves})
    assert answer.unreadable == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.sampled_from([None, 1]), st.booleans())
def test_any_object_is_read_as_json_reads_it(value: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    assert values_of(parse(json.dumps(value, indent=indent, ensure_ascii=ascii_only))) == value


@given(st.text(alphabet='{}[]",:truefalsn0123456789.-eE\\ ', max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    node = parse(text)
    assert node is None or isinstance(node.value, dict)


def restricted(*names: str) -> Group:
    return GROUP.restrict([SCHEMA.leaf((name,)) for name in names])


def test_only_the_leaves_of_the_group_are_read() -> None:
    answer = read_answer(json.dumps(quoted(FIELDS)), restricted("net", "total"))
    assert [reading.place for reading in answer.readings] == [("net",), ("total",)]


def test_a_whole_number_that_is_none_is_missing() -> None:
    for number in ("1e999", "1" + "0" * 400, "1" + "0" * 9000, "1.5"):
        answer = read_answer('{"lines": [{"quantity": ' + number + "}]}", GROUP, quotes=False)
        assert ("lines", "*", "quantity") in answer.missing


@pytest.mark.parametrize(
    ("type_", "given"),
    [
        ("integer", 89370400440532013000),  # an account, more than 64 bits
        ("integer", 12345678901234567890),  # fits into 64 bits unsigned, but not signed
        ("number", 9007199254740993),  # no double equals this number
        ("string", "\ud800x"),
    ],
)
def test_no_value_comes_of_an_answer_that_cannot_be_written(tmp_path: Path, type_: str, given: Any) -> None:
    schema = FieldSchema.parse({"type": "object", "properties": {"field": {"type": type_}}})
    answer = read_answer(json.dumps({"field": given}), groups(schema)[0], quotes=False)
    for reading in answer.readings:
        known: dict[str, Any] = {"document": "a", "sha256": "b", "error": None, "evidence": []}
        record = known | {"fields": {"field": reading.value}}
        outputs = Outputs(records=tmp_path / "fields.jsonl", table=tmp_path / "fields.parquet")
        write_outputs(iter([record]), outputs, schema=schema)
    assert [reading.value for reading in answer.readings] == (["\ufffdx"] if type_ == "string" else [])
    assert answer.unreadable == answer.missing == (() if type_ == "string" else (("field",),))


def test_a_whole_number_that_came_as_a_text_keeps_all_its_digits() -> None:
    schema = FieldSchema.parse({"type": "object", "properties": {"field": {"type": "integer"}}})
    answer = read_answer('{"field": "12345678901234567"}', groups(schema)[0], quotes=False)
    assert [reading.value for reading in answer.readings] == [12345678901234567]
