"""Tests that a step keeps counts of its answers, and no text of a row."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from sqlalchemy import select

from features.pipelines.rows.outputs.answer_columns import Answer
from features.pipelines.rows.outputs.column_types import answer_columns
from features.pipelines.step_rows import AnsweredRow, StepRow
from features.pipelines.step_work.answer_statistics import MOST_FAILED_ROWS, AnswerStatistics
from features.pipelines.step_work.answered_rows import AnswerShape
from features.pipelines.tables import RunStep
from tests.features.pipelines.work.run_builders import House, step

FIELDS = {
    "vendor": {"type": ["string", "null"]},
    "kind": {"anyOf": [{"enum": ["invoice", "receipt"]}, {"type": "null"}]},
    "needs_review": {"type": "boolean"},
    "lines": {"type": "array", "items": {"type": "string"}},
    "total": {"type": "number"},
    "status": {"enum": [f"s{number}" for number in range(51)]},
}


def counted(*answers: Any, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    columns = answer_columns(schema or {"type": "object", "properties": FIELDS})
    statistics = AnswerStatistics(AnswerShape(columns=columns, has_thoughts=False))
    for number, answer in enumerate(answers, start=1):
        row = AnsweredRow(row=StepRow(custom_id=f"row-{number}", values={}, error=None), line={})
        given = answer if isinstance(answer, Answer) else Answer(values=answer)
        statistics.add(row, given)
    return statistics.stored()


def test_nulls_lengths_and_labels_of_each_column_are_counted() -> None:
    whole = {"vendor": "Acme", "kind": "invoice", "needs_review": True, "lines": ["a", "b"], "total": 1.5}
    kept = counted(whole, whole | {"vendor": None, "kind": "receipt", "needs_review": False}, whole | {"kind": None})
    fields = kept["fields"]
    assert (kept["rows"], kept["failed"]) == (3, 0)
    assert (fields["vendor"]["values"], fields["vendor"]["nulls"]) == (2, 1)
    assert fields["vendor"]["lengths"]["log_sum"] == pytest.approx(2 * math.log(5))
    assert fields["lines"]["lengths"]["log_squares"] == pytest.approx(3 * math.log(3) ** 2)
    assert fields["kind"] == {"values": 2, "nulls": 1, "labels": {"invoice": 1, "receipt": 1}}
    assert fields["needs_review"]["labels"] == {"true": 2, "false": 1}
    assert fields["total"] == {"values": 3, "nulls": 0}
    assert "labels" not in fields["status"], "its schema lists too many"


def test_a_label_that_the_schema_does_not_list_and_an_errors_quote_are_not_kept() -> None:
    quoting = Answer(values={}, error="total of the answer is no number that fits: 'Mrs. Smith' (invalid_type)")
    kept = counted({"kind": "Mrs. Smith"}, quoting, Answer(values={}, error="there is no answer (Mrs. Smith)"))
    assert kept["fields"]["kind"]["labels"] == {"other": 1}
    assert kept["codes"] == {"invalid_type": 1, "other": 1}
    assert "Smith" not in json.dumps(kept)


def test_a_refusal_of_one_word_is_no_code() -> None:
    refusals = [Answer(values={}, error=f"there is no answer ({word})") for word in ("no", "smith")]
    assert counted(*refusals, Answer(values={}, error="there is no answer (empty)"))["codes"] == {
        "other": 2,
        "empty": 1,
    }


@pytest.mark.parametrize(
    ("code", "kept"), [("engine_failure", "engine_failure"), (400, "400"), ("x" * 101, "other"), ("of Mrs. S", "other")]
)
def test_the_code_of_a_failed_line_is_that_of_its_failure(code: Any, kept: str) -> None:
    failure = {"code": code, "message": "it failed (smith)"}
    for line in ({"error": failure}, {"response": {"status_code": 400, "body": {"error": failure}}}):
        statistics = AnswerStatistics(AnswerShape(columns=None, has_thoughts=False))
        row = AnsweredRow(row=StepRow(custom_id="row-1", values={}, error=None), line=line)
        statistics.add(row, Answer(values={}, error=f"it failed (smith) ({code})"))
        assert statistics.stored()["codes"] == {kept: 1}


def test_the_size_of_statistics_is_bounded() -> None:
    labels = [f"{number:02d}{'l' * 98}" for number in range(50)]
    properties = {f"f{number}": {"enum": labels} for number in range(60)} | {"n" * 101: {"type": "string"}}
    answers = [dict.fromkeys(properties, label) for label in labels]
    kept = counted(*answers, schema={"type": "object", "properties": properties})
    assert len(json.dumps(kept)) < 16_000
    assert [name for name, one in kept["fields"].items() if "labels" in one] == ["f0"]


def test_the_ids_of_the_first_failed_rows_are_kept() -> None:
    kept = counted(*[Answer(values={}, error="cut (length)")] * 30)
    assert (kept["failed"], kept["codes"], len(kept["failed_rows"])) == (30, {"length": 30}, MOST_FAILED_ROWS)
    assert kept["failed_rows"][:2] == ["row-1", "row-2"]


def test_a_run_keeps_the_statistics_of_its_steps(house: House) -> None:
    house.fails = {"Measure bad"}
    house.put("in/a.jsonl", {"text": "one"}, {"other": 1}, {"text": "bad"}, {"text": "three"})
    house.finish(house.trigger(house.make(steps=[step(output=None), step(
        name="words", source={"step": "fields"}, prompt="{{ text }}", schema=None
    )])))  # fmt: skip
    with house.maker() as session:
        fields, words = session.scalars(select(RunStep).order_by(RunStep.number)).all()
    assert fields.statistics == {
        "rows": 4,
        "failed": 2,
        "codes": {"not_rendered": 1, "engine_failure": 1},
        "failed_rows": ["row-000000002", "row-000000003"],
        "fields": {"length": {"values": 2, "nulls": 0}},
    }
    assert words.failed_rows_file_id is None
    assert words.statistics is not None
    assert words.statistics["fields"]["answer"]["lengths"]["values"] == 2
