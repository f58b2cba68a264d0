"""Tests that the rows of a step without an answer are kept as a file, for another prompt."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from features.pipelines.states import RunState
from features.pipelines.tables import RunStep
from jobs.tables import File, Tenant
from tests.features.pipelines.work.run_builders import House, step


def failed_rows(house: House) -> list[dict[str, Any]] | None:
    """Return the rows of the file; None without one."""
    with house.maker() as session:
        file_id = session.scalars(select(RunStep.failed_rows_file_id)).one()
        if file_id is None:
            return None
        file = session.get_one(File, file_id)
    content = b"".join(house.storage.iter_chunks(file.object_key))
    assert (len(content), file.purpose, file.expires_at is not None) == (file.size_bytes, "user_data", True)
    return [json.loads(line) for line in content.splitlines()]


def test_rows_without_an_answer_are_kept_with_their_columns_and_the_reason(house: House) -> None:
    house.fails = {"Measure bad"}
    house.put("in/a.jsonl", {"text": "one"}, {"other": 1}, {"text": "bad", "n": 7, "error": "own"})
    assert house.finish(house.trigger(house.make())).state == RunState.SUCCEEDED
    rows = failed_rows(house)
    assert rows is not None
    assert [row.keys() for row in rows] == [{"other", "error"}, {"text", "n", "error"}]
    assert rows[1] == {"text": "bad", "n": 7, "error": "it went wrong (engine_failure)"}


@pytest.mark.parametrize(("kept_days", "days"), [(None, 30), (7, 7), (90, 30)])
def test_failed_rows_are_kept_as_long_as_results_and_at_most_30_days(
    house: House, kept_days: int | None, days: int
) -> None:
    with house.maker.begin() as session:
        session.execute(update(Tenant).values(retention_days=kept_days))
    house.fails = {"Measure bad"}
    house.put("in/a.jsonl", {"text": "bad"})
    house.finish(house.trigger(house.make()))
    with house.maker() as session:
        file_id = session.scalars(select(RunStep.failed_rows_file_id)).one()
        file = session.get_one(File, file_id)
        assert file.expires_at is not None
        assert file.expires_at - file.created_at == timedelta(days=days)


def test_a_step_whose_rows_are_all_answered_has_no_such_file(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"})
    house.finish(house.trigger(house.make()))
    assert failed_rows(house) is None


def test_a_run_that_fails_for_a_row_keeps_none(house: House) -> None:
    house.fails = {"Measure bad"}
    house.put("in/a.jsonl", {"text": "bad"})
    assert house.finish(house.trigger(house.make(steps=[step(on_error="fail")]))).state == RunState.FAILED
    assert failed_rows(house) is None


def test_the_file_goes_through_another_prompt_of_the_pipeline(house: House) -> None:
    house.fails = {"Measure bad"}
    house.put("in/a.jsonl", {"text": "one"}, {"text": "bad"})
    house.finish(house.trigger(house.make()))
    rows = failed_rows(house)
    assert rows is not None
    house.put("again/failed.jsonl", *rows)
    again = step(
        prompt="Measure again {{ text }}",
        source={"store": "documents", "keys": "again/*.jsonl"},
        output={"store": "results", "keys": "again/part-{n}.jsonl"},
    )
    house.finish(house.trigger(house.make(steps=[again])))
    [answered] = house.out("again").values()
    assert [(row["text"], row["error"]) for row in answered] == [("bad", None)]
