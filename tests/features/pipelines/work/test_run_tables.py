"""Tests of runs with Parquet output: types of the source and of the answers, checked before anything is spent."""

from __future__ import annotations

import sys
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import select, text

from features.pipelines import lifecycle
from features.pipelines.states import RunState
from jobs.tables import Batch
from tests.effects import Effects, Killed
from tests.features.pipelines.work.run_builders import House, carry_out, step, watched

PARQUET = {"store": "results", "keys": "out/part-{n}.parquet"}
_CLAIM_ENDS = "UPDATE flow SET claimed_until = clock_timestamp() - interval '1 s' WHERE claimed_by <> ''"


def parquet_out(house: House, folder: str = "out") -> pa.Table:
    return pq.read_table(sorted((house.results / folder).glob("*.parquet")))


def carried_out(house: House, *steps: dict[str, Any]) -> None:
    run = house.finish(house.trigger(house.make(steps=list(steps))))
    assert (run.state, run.reason) == (RunState.SUCCEEDED, None)


def refused(house: House, *steps: dict[str, Any]) -> str:
    """Return why a run failed that has called no model."""
    run = house.finish(house.trigger(house.make(steps=list(steps))))
    assert run.state == RunState.FAILED
    with house.maker() as session:
        assert session.scalars(select(Batch.id)).all() == []
    assert list(house.storage.iter_objects()) == []
    return run.reason or ""


def test_columns_of_a_parquet_source_keep_their_types_and_values(house: House) -> None:
    (house.documents / "in").mkdir()
    fields: list[Any] = [
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("day", pa.date32()),
        pa.field("sum", pa.decimal128(12, 2)),
        pa.field("at", pa.timestamp("us", tz="Europe/Berlin")),
        pa.field("raw", pa.binary()),
        pa.field("length", pa.string()),  # a column of the answers, too
        pa.field("error", pa.int64()),
    ]
    own = pa.schema(fields)
    rows = [
        {"text": "one", "day": date(2026, 1, 2), "sum": Decimal("1.50"), "at": 1, "raw": b"\xff", "length": "x"},
        {"text": "bad", "day": None, "sum": Decimal("-2"), "at": None, "raw": None, "length": "y", "error": 7},
    ]
    house.fails = {"Measure bad"}
    pq.write_table(pa.Table.from_pylist(rows, schema=own), house.documents / "in" / "a.parquet")
    carried_out(house, step(source={"store": "documents", "keys": "in/*.parquet"}, output=PARQUET))
    found = parquet_out(house)
    assert found.schema.remove_metadata() == pa.schema(
        [
            *(pa.field(field.name, field.type) for field in fields[:5]),
            pa.field("length", pa.int64()),
            pa.field("error", pa.string()),
        ]
    )
    given = pa.Table.from_pylist(rows, schema=own).to_pylist()
    answers: list[dict[str, Any]] = [
        {"length": 11, "error": None},
        {"length": None, "error": "it went wrong (engine_failure)"},
    ]
    assert found.to_pylist() == [row | answer for row, answer in zip(given, answers, strict=True)]


def test_types_of_other_sources_are_found_in_their_rows_and_reach_a_later_step(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one", "n": 1, "none": None}, {"text": "three", "n": 2.5, "tags": ["a"]})
    second = step(
        name="words",
        source={"step": "fields"},
        prompt="{{ text }} has {{ length }}",
        schema=None,
        output={"store": "results", "keys": "words/part-{n}.parquet"},
    )
    carried_out(house, step(output=None), second)
    found = parquet_out(house, "words")
    assert {field.name: str(field.type) for field in found.schema} == {
        "text": "string",
        "n": "double",
        "none": "string",
        "tags": "list<element: string>",
        "length": "int64",
        "answer": "string",
        "error": "string",
    }
    assert found.column("n").to_pylist() == [1.0, 2.5]
    assert found.column("length").to_pylist() == [11, 13]


def test_groups_have_columns_of_their_own(house: House) -> None:
    wide = {"type": "object", "properties": {"length": {"type": "integer"}, "any": {}}}
    house.put("in/a.jsonl", {"text": "one", "vendor": "Ada"}, {"text": "two", "vendor": "Ada"})
    second = step(name="groups", source={"step": "fields", "group_by": ["vendor"]}, prompt="{{ num_rows }}")
    carried_out(house, step(output=None, schema=wide), second | {"output": PARQUET})
    assert {field.name: str(field.type) for field in parquet_out(house).schema} == {
        "vendor": "string",
        "num_rows": "int64",
        "length": "int64",
        "error": "string",
    }


def test_rows_are_cut_into_files_of_so_many(house: House) -> None:
    house.put("in/a.jsonl", *({"text": str(number)} for number in range(5)))
    carried_out(house, step(output=PARQUET | {"rows_a_file": 2}))
    assert [file["rows"] for file in house.success()["files"]] == [2, 2, 1]
    assert parquet_out(house).column("text").to_pylist() == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"text": "a", "x": 1}, {"text": "b", "x": "one"}], "column 'x'"),
        ([{"text": "a", "x": {}}], "where a column has one type"),
        ([{"text": "a", "x": 2**60 + 1}, *({"text": "b"} for _ in range(1024)), {"text": "c", "x": 0.5}], "range"),
    ],
)
def test_rows_that_parquet_cannot_hold_end_the_run_before_anything_is_spent(
    house: House, rows: list[dict[str, Any]], said: str
) -> None:
    house.put("in/a.jsonl", *rows)
    reason = refused(house, step(output=PARQUET))
    assert reason.startswith("the rows cannot be written as Parquet, where a column has one type")
    assert said in reason


def test_a_control_worker_without_pyarrow_refuses_the_run_at_once_and_another_goes_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.put("in/a.jsonl", {"text": "one"})
    first = step(output={"store": "results", "keys": "first/part-{n}.jsonl"})
    second = step(name="second", output=PARQUET)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow.parquet", None)
        patch.setitem(sys.modules, "pyarrow", None)
        reason = refused(house, first, second)
    assert reason == (
        "writing Parquet needs the package pyarrow, which is not installed. Run `pip install 'tokenmill[tables]'`."
    )
    with house.maker.begin() as session:
        run_id = session.execute(text("SELECT id FROM run")).scalar_one()
        lifecycle.resume_run(session, house.tenant_id, run_id)
    assert house.finish(run_id).state == RunState.SUCCEEDED


@pytest.mark.parametrize("at", ["object", "committed", "create part-00001.parquet", "move", "create _SUCCESS", "clear"])
def test_killed_in_between_a_parquet_output_is_there_once(house: House, at: str) -> None:
    house.put("in/a.jsonl", {"text": "one"}, {"text": "three"})
    run_id = house.trigger(house.make(steps=[step(output=PARQUET | {"rows_a_file": 1})]))
    with pytest.raises(Killed):
        carry_out(house, run_id, watched(house, Effects(at)))
    with house.maker.begin() as session:
        session.execute(text(_CLAIM_ENDS))
    assert house.finish(run_id).state == RunState.SUCCEEDED
    assert parquet_out(house).to_pylist() == [
        {"text": "one", "length": 11, "error": None},
        {"text": "three", "length": 13, "error": None},
    ]
    assert [file["rows"] for file in house.success()["files"]] == [1, 1]
