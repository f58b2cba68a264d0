"""Tests of the columns of a schema, of refusals with their place, and of filling columns from answers."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from features.pipelines.rows.outputs.answer_columns import answer_of
from features.pipelines.rows.outputs.column_types import Kind, answer_columns
from features.pipelines.rows.outputs.tables import arrow_fields, open_table, output_format
from features.pipelines.rows.sources.files import Format
from jobs.errors import InputError


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


ITEM = object_of(name={"type": "string"}, count={"type": "integer"})
SCHEMA = {
    **object_of(
        label={"enum": ["good", "bad"]},
        score={"type": ["number", "null"]},
        tags={"type": "array", "items": {"type": "string"}},
        item={"allOf": [{"$ref": "#/$defs/Item"}], "description": "as pydantic writes it"},
        sure={"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        either={"type": ["integer", "number"]},
    ),
    "$defs": {"Item": ITEM},
}


def test_properties_become_columns_of_one_type() -> None:
    fields = arrow_fields(answer_columns(SCHEMA))
    assert {field.name: str(field.type) for field in fields} == {
        "label": "string",
        "score": "double",
        "tags": "list<item: string>",
        "item": "struct<name: string, count: int64>",
        "sure": "bool",
        "either": "double",
    }


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ([], "at $, it is an array"),
        ({"type": "string"}, 'its schema needs "type": "object", and not string'),
        ({"type": "object"}, "at $.properties, it names no property"),
        (object_of(a={"type": "text"}), "at $.properties.a.type, 'text' is not a type; allowed are string, "),
        (object_of(a={"$ref": "#/$defs/B"}), "at $.properties.a.$ref, there is no #/$defs/B"),
        (object_of(a={"$ref": "http://x"}), "is not a place in this schema"),
        (object_of(a={"enum": []}), "at $.properties.a.enum, it must be a list of at least one"),
        (object_of(a=3), "at $.properties.a, it is a number"),
    ],
)
def test_what_is_no_schema_of_columns_is_refused_with_its_place(schema: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        answer_columns(schema)
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({}, "at $.properties.a, it may be anything"),
        ({"type": "object"}, "at $.properties.a, it is an object of any properties"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "at $.properties.a.anyOf, it may be integer or string"),
        ({"type": ["string", "integer", "null"]}, "at $.properties.a, it may be integer or string"),
        ({"type": "array"}, "at $.properties.a.items, it may be anything"),
        ({"type": "array", "items": object_of(b={"description": "?"})}, "at $.properties.a.items.properties.b, it has"),
        ({"$ref": "#"}, "nested in more than 32 levels, or in itself"),
        (object_of(), "at $.properties.a, the object has no properties"),
    ],
)
def test_what_is_too_wide_for_parquet_is_refused_with_its_place(part: Any, said: str) -> None:
    columns = answer_columns(object_of(a=part))
    with pytest.raises(InputError) as caught:
        arrow_fields(columns)
    assert said in caught.value.message


def result(content: str | None, *, finish_reason: str = "stop", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **more}, "finish_reason": finish_reason}
    return {"custom_id": "row-1", "response": {"status_code": 200, "body": {"choices": [choice]}}, "error": None}


def test_an_answer_fills_its_columns_and_what_it_lacks_is_null() -> None:
    columns = answer_columns(SCHEMA)
    given = {"label": "good", "score": 3, "item": {"name": "x"}, "tags": ["a"], "more": 1}
    answer = answer_of(result(json.dumps(given)), columns)
    assert answer.error is None
    assert answer.values == {
        "label": "good",
        "score": 3.0,
        "tags": ["a"],
        "item": {"name": "x", "count": None},
        "sure": None,
        "either": None,
    }
    assert type(answer.values["score"]) is float


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            result('{"label": "go', finish_reason="length"),
            "the answer was truncated: ended by max_tokens or the context (length)",
        ),
        (result("Sure!"), "the answer is not JSON: "),
        (result("[1]"), "the answer is not a JSON object (invalid_json)"),
        (result('{"label": 3}'), "label of the answer is no string that fits: 3 (invalid_type)"),
        (result('{"item": {"count": 1.5}}'), "item.count of the answer is no integer that fits: 1.5"),
        (result('{"item": {"count": 9223372036854775808}}'), "item.count of the answer is no integer that fits"),
        (result('{"tags": ["a", 1]}'), "tags[1] of the answer is no string that fits: 1"),
        (result('{"sure": 1}'), "sure of the answer is no boolean that fits: 1"),
        (result(None, refusal="I cannot"), "there is no answer (I cannot)"),
        ({"error": {"code": "batch_expired", "message": "too late"}}, "too late (batch_expired)"),
        (
            {
                "response": {
                    "status_code": 400,
                    "body": {"error": {"code": "context_length_exceeded", "message": "long"}},
                }
            },
            "long (context_length_exceeded)",
        ),
    ],
)
def test_an_answer_that_does_not_fit_is_its_rows_error(line: dict[str, Any], said: str) -> None:
    answer = answer_of(line, answer_columns(SCHEMA))
    assert (answer.values, (answer.error or "")[: len(said)]) == ({}, said)


def test_without_a_schema_the_answer_is_a_text_cut_short_or_not() -> None:
    assert answer_of(result("Sure!", finish_reason="length"), None).values == {"answer": "Sure!"}


@pytest.mark.parametrize("columns", [None, answer_columns(SCHEMA)])
def test_thoughts_are_in_no_column_and_cut_ones_are_an_error(columns: Any) -> None:
    whole = answer_of(result('{"label": "good"}', reasoning_content="Is it good?"), columns)
    assert "Is it good?" not in str(whole)
    cut = result(None, finish_reason="length", reasoning_content="Is it")
    cut["response"]["body"]["choices"][0]["reasoning_finish_reason"] = "length"
    assert "truncated in its thoughts" in (answer_of(cut, columns).error or "")


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("columns", [None, answer_columns(SCHEMA)])
def test_thoughts_are_a_column_where_they_are_asked_for(columns: Any, name: str) -> None:
    whole = answer_of(result('{"label": "good"}', **{name: "Is it good?"}), columns, has_thoughts=True)
    assert whole.values["thoughts"] == "Is it good?"
    assert whole.values["answer" if columns is None else "label"] in ("good", '{"label": "good"}')
    none = answer_of(result('{"label": "good"}'), columns, has_thoughts=True)
    assert (none.values["thoughts"], none.error) == (None, None)
    cut = result(None, finish_reason="length", reasoning_content="Is it")
    cut["response"]["body"]["choices"][0]["reasoning_finish_reason"] = "length"
    answer = answer_of(cut, columns, has_thoughts=True)
    assert (answer.values, answer.error is None) == ({"thoughts": "Is it"}, False)
    failed = {"error": {"code": "batch_expired", "message": "too late"}}
    assert answer_of(failed, columns, has_thoughts=True).values == {"thoughts": None}


def written(form: Format, rows: list[dict[str, Any]], *, schema: Any = None) -> bytes:
    target = io.BytesIO()
    with open_table(target, form, columns=["a", "b"], schema=schema) as table:
        for row in rows:
            table.write(row)
    return target.getvalue()


def test_tables_are_written_row_by_row() -> None:
    rows: list[dict[str, Any]] = [{"a": "x,\n", "b": [1, {"c": None}]}, {"a": True, "b": None}, {"a": 1.5}]
    assert written(Format.JSONL, rows).splitlines() == [
        b'{"a":"x,\\n","b":[1,{"c":null}]}',
        b'{"a":true,"b":null}',
        b'{"a":1.5}',
    ]
    assert written(Format.CSV, rows).decode() == 'a,b\n"x,\n","[1,{""c"":null}]"\ntrue,\n1.5,\n'
    schema = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.string()))])
    many: list[dict[str, Any]] = [{"a": number, "b": [str(number)]} for number in range(10_000)] + [{"a": None}]
    table = pq.read_table(io.BytesIO(written(Format.PARQUET, many, schema=schema)))
    assert table.schema == schema
    assert table.to_pylist() == [*many[:-1], {"a": None, "b": None}]


LONG = 123456789012345678901234567890


def test_values_of_every_kind_are_written_alike() -> None:
    rows: list[dict[str, Any]] = [
        {"a": LONG, "b": {"n": [LONG]}},
        {"a": float("nan"), "b": float("inf")},
        {"a": Decimal("1.10"), "b": datetime(2026, 1, 2, tzinfo=UTC)},
        {"a": np.float64(1.5), "b": np.array([1, 2])},
    ]
    assert written(Format.JSONL, rows).decode().splitlines() == [
        f'{{"a":{LONG},"b":{{"n":[{LONG}]}}}}',
        '{"a":null,"b":"Infinity"}',
        '{"a":"1.10","b":"2026-01-02T00:00:00+00:00"}',
        '{"a":1.5,"b":[1,2]}',
    ]
    assert written(Format.CSV, rows).decode().splitlines() == [
        "a,b",
        f'{LONG},"{{""n"":[{LONG}]}}"',
        ",Infinity",
        "1.10,2026-01-02T00:00:00+00:00",
        '1.5,"[1,2]"',
    ]


def test_a_long_integer_of_an_answer_keeps_its_digits() -> None:
    columns = answer_columns(object_of(a={}))
    assert answer_of(result(f'{{"a": [{LONG}]}}'), columns).values == {"a": [LONG]}
    columns = answer_columns(object_of(item={"type": "integer"}))
    assert f"item of the answer is no integer that fits: {LONG} (" in (
        answer_of(result(f'{{"item": {LONG}}}'), columns).error or ""
    )


def test_an_output_says_by_its_name_what_it_is_to_be() -> None:
    assert [output_format(name) for name in ("a.jsonl", "a.b.CSV", "a.parquet")] == list(Format)
    for name in ("a", "a.txt", "a.csv.gz"):
        with pytest.raises(InputError, match=r"Its name must end in \.jsonl, \.csv or \.parquet"):
            output_format(name)


def test_a_type_that_a_schema_does_not_say_is_any() -> None:
    assert answer_columns(object_of(a={"description": "?"}))["a"].kind is Kind.ANY


def test_large_rows_are_written_in_small_groups() -> None:
    target = io.BytesIO()
    with open_table(target, Format.PARQUET, columns=None, schema=pa.schema({"a": pa.string()})) as table:
        for _ in range(12):
            table.write({"a": "x" * (8 << 20)})
    metadata = pq.ParquetFile(target).metadata
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [4, 4, 4]


def test_a_value_that_parquet_has_no_place_for_is_refused() -> None:
    with (
        pytest.raises(InputError, match="the rows cannot be written as Parquet, where a column has one type"),
        open_table(io.BytesIO(), Format.PARQUET, columns=None, schema=pa.schema({"a": pa.int8()})) as table,
    ):
        table.write({"a": "text"})
