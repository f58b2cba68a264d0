"""Tests of runs on a real database: rows in, a batch, rows out."""

from __future__ import annotations

import itertools
import json
import os
import re
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError

from features.pipelines import definitions, lifecycle
from features.pipelines.external.store import ExternalStore
from features.pipelines.states import RunState
from features.pipelines.tables import Run, RunStep
from jobs.audit.audit import audit
from jobs.batches import lifecycle as batches
from jobs.batches.deletion import delete_tenant
from jobs.errors import InputError, StoreAwayError
from jobs.tables import Batch, File, Tenant
from tests.features.pipelines.work.run_builders import House, step


def test_rows_go_through_a_batch_and_come_out_with_their_answers(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"}, {"text": "three"})
    house.put("in/b.jsonl", {"text": "seven", "id": 7})
    pipeline_id = house.make(steps=[step(output={"store": "results", "keys": "out/part-{n}.jsonl", "rows_a_file": 2})])
    run = house.finish(house.trigger(pipeline_id))
    assert (run.state, run.reason) == (RunState.SUCCEEDED, None)
    assert house.out() == {
        "part-00000.jsonl": [
            {"text": "one", "length": 11, "error": None},
            {"text": "three", "length": 13, "error": None},
        ],
        "part-00001.jsonl": [{"text": "seven", "id": 7, "length": 13, "error": None}],
    }
    said = house.success()
    assert (said["run_id"], [file["rows"] for file in said["files"]]) == (run.id, [2, 1])
    assert not (house.results / "out" / "_temporary" / run.id).exists()
    with house.maker() as session:
        batch = session.scalars(select(Batch)).one()
        assert batch.request_metadata == {"run_id": run.id, "step": "fields"}
    with house.maker() as session:
        assert audit(session) == []


def test_a_row_that_cannot_be_rendered_or_answered_keeps_its_row_with_an_error(house: House) -> None:
    house.fails = {"Measure bad"}
    house.put("in/a.jsonl", {"text": "one"}, {"other": 1}, {"text": "bad"})
    run = house.finish(house.trigger(house.make()))
    assert run.state == RunState.SUCCEEDED
    [rows] = house.out().values()
    assert [row.get("length") for row in rows] == [11, None, None]
    assert re.search("line 1.*text", rows[1]["error"])
    assert rows[2]["error"] == "it went wrong (engine_failure)"
    with house.maker() as session:
        assert session.scalars(select(RunStep)).one().num_failed == 2


def test_rows_without_answers_fail_a_run_that_wants_that_and_resumed_it_does_them_anew(house: House) -> None:
    house.fails = {"Measure bad"}
    house.put("in/a.jsonl", {"text": "one"}, {"text": "bad"})
    run = house.finish(house.trigger(house.make(steps=[step(on_error="fail")])))
    assert run.state == RunState.FAILED
    assert run.reason == (
        "1 of 2 rows of step 'fields' have no answer, and its on_error is fail. The first: row-000000002: it went "
        "wrong (engine_failure)"
    )
    assert house.out() == {}
    house.fails = set()
    with house.maker.begin() as session:
        lifecycle.resume_run(session, house.tenant_id, run.id)
    assert house.finish(run.id).state == RunState.SUCCEEDED
    assert [len(rows) for rows in house.out().values()] == [2]


def test_the_answers_of_a_step_reach_the_next_one_joined_by_their_rows(house: House) -> None:
    house.fails = {"Measure bad"}
    house.put("in/a.jsonl", {"text": "one"}, {"text": "bad"}, {"text": "three"})
    second = step(
        name="words",
        source={"step": "fields"},
        prompt="{{ text }} has {{ previous.json.length }} of {{ previous.text }} on {{ run.date }}",
        output={"store": "results", "keys": "words/{date}/part-{n}.jsonl"},
    )
    pipeline_id = house.make(steps=[step(output=None), second])
    run = house.finish(house.trigger(pipeline_id))
    date = f"{run.scheduled_for:%Y-%m-%d}"
    [rows] = house.out(f"words/{date}").values()
    lengths = {"one": 11, "three": 13}
    prompts = {text: f'{text} has {size} of {{"length": {size}}} on {date}' for text, size in lengths.items()}
    assert rows == [{"text": text, "length": len(prompt), "error": None} for text, prompt in prompts.items()]


def test_thoughts_are_a_column_of_a_step_that_asks_for_them_and_of_the_next_one(house: House) -> None:
    house.thoughts = {"Measure one": "Three letters.", "It has 11 of 1": "Eleven?"}
    house.put("in/a.jsonl", {"text": "one"}, {"text": "two"})
    outputs = {name: {"store": "results", "keys": f"{name}/part-{{n}}.jsonl"} for name in ("first", "second")}
    second = step(
        name="next", source={"step": "fields"}, prompt="It has {{ previous.json.length }} of {{ previous.json|length }}"
    )
    steps = [step(thoughts=True, output=outputs["first"]), second | {"output": outputs["second"]}]
    run = house.finish(house.trigger(house.make(steps=steps)))
    assert run.state == RunState.SUCCEEDED
    [first] = house.out("first").values()
    expected = {"one": "Three letters.", "two": None}
    assert first == [
        {"text": text, "length": 11, "thoughts": thoughts, "error": None} for text, thoughts in expected.items()
    ]
    [rows] = house.out("second").values()
    assert [(row["thoughts"], row["length"]) for row in rows] == [("Three letters.", 14), (None, 14)]


def test_the_properties_of_a_schema_are_asked_for_and_put_out_in_the_order_they_were_given_in(house: House) -> None:
    """Models answer in that order, and one that was trained on another order answers badly."""
    names = ["vendor", "b", "date", "a"]
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    house.put("in/a.jsonl", {"text": "one"})
    run = house.finish(house.trigger(house.make(steps=[step(schema=schema)])))
    with house.maker() as session:
        file = session.get_one(File, session.scalars(select(Batch)).one().input_file_id)
    sent = json.loads(b"".join(house.storage.iter_chunks(file.object_key)))
    asked = sent["body"]["response_format"]["json_schema"]["schema"]
    assert list(asked["properties"]) == names
    [[row]] = house.out().values()
    assert list(row) == ["text", *names, "error"], run.reason


def test_another_order_of_properties_is_another_version_of_a_pipeline(house: House) -> None:
    def steps_with(*names: str) -> dict[str, Any]:
        return {"steps": [step(schema={"type": "object", "properties": {name: {"type": "string"} for name in names}})]}

    pipeline_id = house.make(**steps_with("a", "b"))
    for definition, version in ((steps_with("a", "b"), 1), (steps_with("b", "a"), 2)):
        with house.maker.begin() as session:
            found = definitions.change_pipeline(session, house.tenant_id, pipeline_id, definition=definition)
            assert found.version == version


def test_a_run_takes_only_what_no_successful_one_took_as_it_is_now(house: House) -> None:
    source = {"store": "documents", "keys": "in/*.jsonl", "take": "new_since_last_success"}
    output = {"store": "results", "keys": "{run}/part-{n}.jsonl"}
    pipeline_id = house.make(steps=[step(source=source, output=output, on_error="fail")])

    def taken() -> tuple[str, list[str]]:
        run = house.finish(house.trigger(pipeline_id))
        return run.state, [row["text"] for rows in house.out(run.id).values() for row in rows]

    house.put("in/a.jsonl", {"text": "a"})
    house.put("in/b.jsonl", {"text": "b"})
    assert taken() == ("succeeded", ["a", "b"])
    assert taken() == ("succeeded", [])
    house.put("in/b.jsonl", {"text": "b2"})
    house.put("in/c.jsonl", {"text": "c"})
    house.fails = {"Measure c"}
    assert taken() == ("failed", [])
    house.fails = set()
    assert taken() == ("succeeded", ["b2", "c"]), "a failed run has taken nothing"


def test_a_run_for_the_same_moment_takes_the_place_of_the_earlier_one(house: House) -> None:
    house.put("in/a.jsonl", *({"text": str(number)} for number in range(5)))
    two = step(output={"store": "results", "keys": "out/part-{n}.jsonl", "rows_a_file": 2})
    pipeline_id = house.make(steps=[two])
    house.finish(house.trigger(pipeline_id))
    assert len(house.out()) == 3
    (house.results / "out" / "readme.txt").write_text("mine")
    house.put("in/a.jsonl", {"text": "x"})
    second = house.finish(house.trigger(pipeline_id))
    assert [row["text"] for rows in house.out().values() for row in rows] == ["x"]
    assert house.success()["run_id"] == second.id
    assert (house.results / "out" / "readme.txt").exists(), "what is not of the output stays"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_tokens": 5}, r"Step 'fields' needs about \d+ tokens, 0 are used, and max_tokens of the pipeline is 5"),
        ({"max_cost": "0.000001"}, r"would cost about 0\.0\d+, 0\.00 are used, and max_cost of the pipeline is"),
        (
            {"steps": [step(source={"store": "nowhere", "keys": "a"})]},
            "There is no store 'nowhere' for you; there are: documents",
        ),
        ({"steps": [step(output={"store": "documents", "keys": "o/{n}.jsonl"})]}, "for reading only"),
        (
            {"steps": [step(), step(name="second", model="gone", output=None, source={"step": "fields"})]},
            "steps.1.model: The model 'gone' does not exist",
        ),
        ({"steps": [step(model="gone")]}, "The model 'gone' does not exist; known are: demo"),
    ],
)
def test_a_run_that_cannot_be_ends_with_one_sentence_and_spends_nothing(
    house: House, changes: dict[str, Any], said: str
) -> None:
    house.put("in/a.jsonl", {"text": "one"})
    run = house.finish(house.trigger(house.make(**changes)))
    assert run.state == RunState.FAILED
    assert re.search(said, run.reason or "")
    assert house.out() == {}
    with house.maker() as session:
        assert session.scalars(select(RunStep)).all() == []
    assert list(house.storage.iter_objects()) == [], "what was written for a refused step is deleted"


def test_a_step_writes_no_more_than_a_file_may_have(house: House) -> None:
    house.put("in/a.jsonl", *({"text": str(number)} for number in range(100)))
    run_id = house.trigger(house.make())
    house.settings = house.settings.model_copy(update={"max_file_bytes": 2000})
    run = house.finish(run_id)
    assert run.state == RunState.FAILED
    assert "have more than 2,000 bytes, which is the limit of a file" in (run.reason or "")
    assert list(house.storage.iter_objects()) == []


def test_a_row_that_cannot_be_kept_is_a_row_with_an_error(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"})
    with (house.documents / "in/a.jsonl").open("a") as file:
        file.write('{"text": "deep", "more": ' + "[" * 300 + "]" * 300 + "}\n")
    run = house.finish(house.trigger(house.make()))
    assert (run.state, run.reason) == (RunState.SUCCEEDED, None)
    [rows] = house.out().values()
    assert rows[0] == {"text": "one", "length": 11, "error": None}
    assert "cannot be kept as JSON" in rows[1]["error"]


def test_a_file_whose_name_is_not_utf8_ends_the_run_with_a_sentence_where_it_is_meant(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"})
    os.close(os.open(os.fsencode(house.documents) + b"/in/caf\xe9.csv", os.O_CREAT | os.O_WRONLY))
    assert house.finish(house.trigger(house.make())).state == RunState.SUCCEEDED
    source = {"store": "documents", "keys": "in/*", "take": "new_since_last_success"}
    output = {"store": "results", "keys": "{run}/part-{n}.jsonl"}
    run = house.finish(house.trigger(house.make(steps=[step(source=source, output=output)])))
    assert run.state == RunState.FAILED
    assert re.search(r"'in/caf\\udce9.csv' is not UTF-8; rename it", run.reason or "")


def test_an_unexpected_error_ends_a_run_once_it_was_tried_often_enough(house: House) -> None:
    def defect(*args: Any, **options: Any) -> ExternalStore:
        raise RuntimeError("a defect")

    house.put("in/a.jsonl", {"text": "one"})
    run_id = house.trigger(house.make())
    with house.maker.begin() as session:
        lifecycle.start_queued(session)
    for num_tries in range(1, 7):
        assert house.runs(open_store=defect).advance(run_id)
        assert house.run(run_id).num_tries == num_tries
    run = house.run(run_id)
    assert run.state == RunState.FAILED
    assert "unexpected error" in (run.reason or "")


@pytest.mark.changes_schema
def test_a_run_whose_end_the_database_refuses_is_tried_ever_later_and_ends_once_it_does_not(house: House) -> None:
    def refuse(*args: Any, **options: Any) -> ExternalStore:
        raise InputError("it is gone")

    run_id = house.trigger(house.make())
    with house.maker.begin() as session:
        lifecycle.start_queued(session)
        session.execute(text("ALTER TABLE flow ADD CONSTRAINT refused CHECK (state <> 'failed')"))
    for num_tries in range(1, 6):
        assert house.runs(open_store=refuse).advance(run_id)
        run = house.run(run_id)
        assert (run.state, run.num_tries) == (RunState.RUNNING, num_tries)
        assert run.look_at is not None
    for num_tries in (6, 7):
        with pytest.raises(IntegrityError):
            house.runs(open_store=refuse).advance(run_id)
        assert house.run(run_id).num_tries == num_tries
    with house.maker.begin() as session:
        session.execute(text("ALTER TABLE flow DROP CONSTRAINT refused"))
    house.runs(open_store=refuse).advance(run_id)
    assert (house.run(run_id).state, house.run(run_id).reason) == (RunState.FAILED, "it is gone")


def test_a_cancelled_run_that_cannot_go_on_is_cancelled_after_its_last_try(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.put("in/a.jsonl", {"text": "one"})
    run_id = house.trigger(house.make())
    with house.maker.begin() as session:
        lifecycle.start_queued(session)
    house.runs().advance(run_id)
    with house.maker.begin() as session:
        lifecycle.cancel_run(session, house.tenant_id, run_id, reason="enough")
    monkeypatch.setattr(batches, "cancel_batch", lambda *_given: 1 / 0)
    for _ in range(6):
        assert house.run(run_id).state == RunState.CANCELLING
        house.runs().advance(run_id)
    assert house.run(run_id).state == RunState.CANCELLED


@pytest.mark.parametrize("num_asked", [1, 2, 5, 20])
def test_a_worker_that_is_to_end_gives_its_run_up_at_once_and_another_goes_on(house: House, num_asked: int) -> None:
    asked = itertools.count(1)
    house.put("in/a.jsonl", {"text": "one"})
    run_id = house.trigger(house.make())
    with house.maker.begin() as session:
        lifecycle.start_queued(session)
    runs = house.runs(is_stopping=lambda: next(asked) >= num_asked)
    is_given_up = not runs.advance(run_id)
    assert is_given_up == (next(asked) > num_asked)
    run = house.run(run_id)
    assert (run.claimed_by, run.num_tries, run.reason) == (None, 0, None)
    assert house.finish(run_id).state == RunState.SUCCEEDED
    assert [len(rows) for rows in house.out().values()] == [1]


def test_a_cancelled_run_cancels_its_batch_and_ends_once_that_has(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"})
    run_id = house.trigger(house.make())
    with house.maker.begin() as session:
        lifecycle.start_queued(session)
    house.runs().advance(run_id)
    with house.maker.begin() as session:
        lifecycle.cancel_run(session, house.tenant_id, run_id, reason="by hand")
    house.runs().advance(run_id)
    with house.maker() as session:
        assert session.scalars(select(Batch.state)).one() == "cancelling"
    run = house.finish(run_id)
    assert (run.state, run.reason) == (RunState.CANCELLED, "by hand")


def test_a_store_that_is_gone_ends_the_run_with_a_sentence_and_resumed_it_goes_on(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"})
    run_id = house.trigger(house.make())
    house.documents.rename(house.documents.with_name("away"))
    run = house.finish(run_id)
    assert run.state == RunState.FAILED
    assert run.reason == StoreAwayError("documents").message
    house.documents.with_name("away").rename(house.documents)
    with house.maker.begin() as session:
        lifecycle.resume_run(session, house.tenant_id, run_id)
    assert house.finish(run_id).state == RunState.SUCCEEDED


def test_a_run_waits_for_a_source_folder_that_is_away_for_a_while(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"})
    run_id = house.trigger(house.make())
    with house.maker.begin() as session:
        lifecycle.start_queued(session)
    house.documents.rename(house.documents.with_name("away"))
    house.runs().advance(run_id)
    with house.maker() as session:
        assert session.get_one(Run, run_id).state == RunState.RUNNING
    house.documents.with_name("away").rename(house.documents)
    assert house.finish(run_id).state == RunState.SUCCEEDED


# --- killed between any two effects ----------------------------------------------------------------------------------


def test_queued_runs_of_a_tenant_that_is_deleted_end(house: House) -> None:
    run_id = house.trigger(house.make())
    with house.maker.begin() as session:
        delete_tenant(session, session.get_one(Tenant, house.tenant_id), by="operator")
    run = house.run(run_id)
    assert (run.state, run.reason, run.ended_at is None) == ("cancelled", "its tenant was deleted", False)
