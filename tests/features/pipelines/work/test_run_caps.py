"""Tests that a run never uses more than its pipeline allows, over everything that it has used before."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import select

from features.pipelines import definitions, lifecycle, steps
from features.pipelines.states import RunState
from flows.due import find_due
from jobs.audit.audit import audit
from jobs.batches import lifecycle as batches
from jobs.batches import retrying
from jobs.tables import Batch, Tenant
from tests.features.pipelines.work.run_builders import House, step


def test_what_a_run_used_before_it_was_resumed_counts_against_its_caps(house: House) -> None:
    house.fails = {"Measure bad"}
    house.put("in/a.jsonl", {"text": "one"}, {"text": "bad"})
    run = house.finish(house.trigger(house.make(steps=[step(on_error="fail")], max_tokens=10**6)))
    assert run.state == RunState.FAILED
    with house.maker() as session:
        assert steps.used(session, run) == (5, 5_000_000)
    with house.maker.begin() as session:
        lifecycle.resume_run(session, house.tenant_id, run.id)
    house.fails = set()
    run = house.finish(run.id)
    assert run.state == RunState.SUCCEEDED
    with house.maker() as session:
        assert steps.used(session, run)[0] == 15


def test_a_batch_of_the_tenant_that_names_a_run_in_its_metadata_is_not_taken_for_the_runs(house: House) -> None:
    house.fails = {"Measure bad"}
    house.put("in/a.jsonl", {"text": "one"}, {"text": "bad"})
    run = house.finish(house.trigger(house.make()))
    with house.maker.begin() as session:
        (of_run,) = session.scalars(select(Batch)).all()
        tenant = session.get_one(Tenant, house.tenant_id)
        again = replace(retrying.wish(of_run), input_file_id=of_run.input_file_id, made_from=None)
        assert again.metadata == {"run_id": run.id, "step": "fields"}
        batches.create_batch(session, tenant, again, house.settings)
    house.answer_all()
    with house.maker.begin() as session:
        assert [batch.input_tokens for batch in session.scalars(select(Batch))] == [3, 3]
        assert steps.used(session, run)[0] == 5


def test_a_step_whose_batch_can_use_no_more_of_the_cap_is_stopped_and_goes_on_once_it_is_raised(house: House) -> None:
    house.put("in/a.jsonl", *({"text": str(number)} for number in range(3)))
    pipeline_id = house.make(max_tokens=100)
    run_id = house.trigger(pipeline_id)
    with house.maker.begin() as session:
        lifecycle.start_queued(session)
    house.runs().advance(run_id)
    house.answer_some(costs=[40, 50, 45], used=30)
    with house.maker.begin() as session:
        assert [due.id for due in find_due(session, ["run"])] == [run_id]
    house.runs().advance(run_id)
    run = house.run(run_id)
    assert (run.state, run.reason) == (
        RunState.FAILED,
        "Step 'fields' was stopped: 60 tokens and 0.00006 are used, which leaves no room for the line that "
        "has not run, as max_tokens of the pipeline is 100. Raise it and resume the run, or take fewer rows.",
    )
    house.answer_all()
    with house.maker() as session:
        batch = session.scalars(select(Batch)).one()
        assert (batch.state, batch.num_completed, batch.input_tokens) == ("cancelled", 2, 60)
    with house.maker() as session:
        assert audit(session) == []
    definition = {"steps": [step()], "max_tokens": 1000}
    with house.maker.begin() as session:
        definitions.change_pipeline(session, house.tenant_id, pipeline_id, definition=definition)
        lifecycle.resume_run(session, house.tenant_id, run_id)
    assert house.finish(run_id).state == RunState.SUCCEEDED
    assert [len(rows) for rows in house.out().values()] == [3]


def test_a_run_whose_batch_still_has_room_is_left_alone(house: House) -> None:
    house.put("in/a.jsonl", *({"text": str(number)} for number in range(3)))
    run_id = house.trigger(house.make(max_tokens=100))
    with house.maker.begin() as session:
        lifecycle.start_queued(session)
    house.runs().advance(run_id)
    house.answer_some(costs=[40, 50, 45], used=5)
    with house.maker.begin() as session:
        assert find_due(session, ["run"]) == []
    house.runs().advance(run_id)
    assert house.run(run_id).state == RunState.RUNNING
