"""Tests of rows that become lines and results that become rows: each once, in order, failed ones too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from features.pipelines.rows.lines.joining import joined_rows
from features.pipelines.rows.lines.requests import Ask, RequestLine, UnrenderedRow, request_lines, require_columns
from features.pipelines.rows.lines.table_shape import SeenColumns, Shape, output_schema, require_apart
from features.pipelines.rows.outputs.column_types import answer_columns
from features.pipelines.rows.sources.files import Format
from features.pipelines.rows.sources.reading import open_source
from features.pipelines.rows.sources.source import Source
from features.pipelines.rows.templates.template import check
from jobs.errors import InputError, ServiceError

SCHEMA = {"type": "object", "properties": {"label": {"type": "string"}}}


def source_of(folder: Path, *rows: dict[str, Any]) -> Source:
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return open_source(str(path))


def test_each_row_becomes_a_line_or_says_why_not(tmp_path: Path) -> None:
    source = source_of(tmp_path, {"text": "a"}, {"words": "b"}, {"text": "c", "n": 1})
    ask = Ask(model="demo", params={"max_tokens": 8}, schema=SCHEMA)
    first, second, third = request_lines(source, check("{{ text }}{{ row|tojson }}"), ask)
    assert isinstance(first, RequestLine)
    assert json.loads(first.line) == {
        "custom_id": "row-1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "demo",
            "max_tokens": 8,
            "messages": [{"role": "user", "content": 'a{"text": "a"}'}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
            },
        },
    }
    assert second == UnrenderedRow(index=2, error="line 1, column 4 of the prompt: `text` is undefined")
    assert isinstance(third, RequestLine)
    assert json.loads(third.line)["custom_id"] == "row-3"


def test_a_column_that_the_prompt_does_not_show_may_hold_anything() -> None:
    rows = [{"text": "a", "image": b"\xff"}]
    source = Source(
        description="x", columns=["text", "image"], schema=None, identity=str,
        read=lambda: (_ for _ in map(_row, rows)),
    )  # fmt: skip
    (line,) = request_lines(source, check("{{ text }}"), Ask(model="m"))
    assert isinstance(line, RequestLine)


@pytest.mark.parametrize(
    "template",
    [
        "{{ text[:2] }}",
        "{{ text.split()[:1][0] }}",
        "{% for one in text[:2] %}{{ one }}{% endfor %}",
        "{% set text = text|trim %}{{ text[:2] }}",
        "{% with text=text %}{{ text[:2] }}{% endwith %}",
        "{% filter replace(text, 'ab') %}{{ row['text'] }}{% endfilter %}",
        "{{ row['text'][:2] }}",
    ],
)
def test_a_column_arrives_wherever_the_prompt_names_it(tmp_path: Path, template: str) -> None:
    (line,) = request_lines(source_of(tmp_path, {"text": "ab c"}), check(template), Ask(model="m"))
    assert isinstance(line, RequestLine)
    assert line.messages[0].content == "ab"


def test_a_column_named_like_a_function_does_not_take_its_place(tmp_path: Path) -> None:
    source = source_of(tmp_path, {"range": 1, "upper": "u", "text": "a"})
    (line,) = request_lines(source, check("{% for n in range(2) %}{{ text|upper }}{% endfor %}"), Ask(model="m"))
    assert isinstance(line, RequestLine)
    assert line.messages[0].content == "AA"


def _row(values: dict[str, Any]) -> Any:
    from features.pipelines.rows.sources.source import Row

    return Row("x", 1, values)


def test_a_column_that_no_row_has_is_refused_at_once() -> None:
    template = check("{{ text }} {{ row.anything }}")
    require_columns(template, ["text"])
    require_columns(template, None)
    with pytest.raises(
        InputError, match=r"the prompt takes \{\{ text \}\}, and the source has no such column. Its columns are: "
    ):
        require_columns(template, ["words", "Review Text"])


def result(index: int, label: str | None) -> bytes:
    if label is None:
        return json.dumps({"custom_id": f"row-{index}", "error": {"code": "x", "message": "no"}}).encode()
    choice = {"message": {"content": json.dumps({"label": label})}, "finish_reason": "stop"}
    return json.dumps(
        {"custom_id": f"row-{index}", "response": {"status_code": 200, "body": {"choices": [choice]}}}
    ).encode()


def test_results_stand_beside_their_rows_and_failed_rows_stay(tmp_path: Path) -> None:
    source = source_of(tmp_path, *({"n": number} for number in range(1, 7)))
    shape = Shape(answer=answer_columns(SCHEMA))
    files: Sequence[list[bytes]] = [
        [result(1, "a"), result(4, "d"), result(6, "f")],
        [result(3, None), result(5, None)],
    ]
    rows = list(joined_rows(source, shape, unrendered=[UnrenderedRow(index=2, error="bad")], results=files))
    assert rows == [
        {"n": 1, "label": "a", "error": None},
        {"n": 2, "label": None, "error": "bad"},
        {"n": 3, "label": None, "error": "no (x)"},
        {"n": 4, "label": "d", "error": None},
        {"n": 5, "label": None, "error": "no (x)"},
        {"n": 6, "label": "f", "error": None},
    ]
    with pytest.raises(ServiceError, match="the results have no line for row 2 of "):
        list(joined_rows(source, shape, unrendered=[], results=files))


def test_a_column_of_the_source_is_never_replaced() -> None:
    shape = Shape(answer=answer_columns(SCHEMA))
    require_apart(["n"], shape)
    with pytest.raises(InputError, match="already has the columns label, error, which the answers would replace"):
        require_apart(["n", "label", "error"], shape)
    prefixed = Shape(answer=answer_columns(SCHEMA), prefix="new_")
    require_apart(["n", "label", "error"], prefixed)
    assert prefixed.row({"label": 1}, {"label": "a"}, None) == {"label": 1, "new_label": "a", "new_error": None}
    clash = Shape(answer=answer_columns({"type": "object", "properties": {"error": {"type": "string"}}}))
    with pytest.raises(InputError, match="the schema has a property 'error'"):
        require_apart([], clash)


def test_thoughts_have_a_column_before_the_error() -> None:
    shape = Shape(answer=answer_columns(SCHEMA), has_thoughts=True, prefix="new_")
    assert list(shape.typed) == ["new_label", "new_thoughts", "new_error"]
    row = shape.row({"n": 1}, {"label": "a", "thoughts": "Hm."}, None)
    assert row == {"n": 1, "new_label": "a", "new_thoughts": "Hm.", "new_error": None}
    with pytest.raises(InputError, match="already has the column new_thoughts"):
        require_apart(["new_thoughts"], shape)
    own = answer_columns({"type": "object", "properties": {"thoughts": {"type": "string"}}})
    require_apart([], Shape(answer=own))
    with pytest.raises(InputError, match="the schema has a property 'thoughts'"):
        require_apart([], Shape(answer=own, has_thoughts=True))


def test_rows_without_a_header_get_the_columns_that_they_have() -> None:
    seen = SeenColumns(Format.PARQUET)
    for number in range(3000):
        seen.add({"n": number, "x": None, "o": {"a": 1}} if number else {"n": 0.5})
    seen.add({"late": ["a"], "o": {"b": "c"}})
    assert seen.names == ["n", "x", "o", "late"]
    assert str(seen.schema().field("n").type) == "double"
    assert str(seen.schema().field("x").type) == "string"
    assert {field.name for field in seen.schema().field("o").type} == {"a", "b"}
    assert str(seen.schema().field("late").type).startswith("list")


def test_an_integer_beyond_64_bits_is_refused_for_parquet_with_its_column() -> None:
    seen = SeenColumns(Format.PARQUET)
    seen.add({"n": 1 << 70})
    with pytest.raises(InputError, match=r"column 'n' has an integer beyond 64 bits\. Write JSONL"):
        seen.schema()


def test_an_integer_of_any_length_reaches_prompt_and_output(tmp_path: Path) -> None:
    source = source_of(tmp_path, {"n": 1 << 200})
    (line,) = request_lines(source, check("{{ n }} {{ row|tojson }}"), Ask(model="m"))
    assert isinstance(line, RequestLine)
    assert line.messages[0].content == f'{1 << 200} {{"n": {1 << 200}}}'
    shape = Shape(answer=answer_columns(SCHEMA))
    assert next(joined_rows(source, shape, unrendered=[], results=[[result(1, "a")]]))["n"] == 1 << 200


@pytest.mark.parametrize("values", [[1, "a"], [1] * 1024 + ["a"], [[1], {"a": 1}], [1 << 70]])
def test_rows_of_several_types_are_refused_for_parquet_alone(values: list[Any]) -> None:
    def seen_in(form: Format) -> Any:
        seen = SeenColumns(form)
        for value in values:
            seen.add({"n": value})
        return seen.schema()

    assert seen_in(Format.JSONL) is None
    with pytest.raises(InputError, match="a column has one type"):
        seen_in(Format.PARQUET)


def test_an_output_keeps_the_types_of_its_source() -> None:
    own = pa.schema([("day", pa.date32())])
    shape = Shape(answer=None, prefix="a_")
    assert output_schema(own, ["day"], shape) == pa.schema(
        [("day", pa.date32()), ("a_answer", pa.string()), ("a_error", pa.string())]
    )
    assert output_schema(None, ["t"], shape).field("t").type == pa.string()
