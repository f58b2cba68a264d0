"""Tests of runs that are killed between any two effects: each effect happens once."""

from __future__ import annotations

import itertools

import pytest
from sqlalchemy import select, text

from features.pipelines import lifecycle
from features.pipelines.recipe import RunRecipe
from features.pipelines.states import TERMINAL_RUN_STATES, RunState
from features.pipelines.tables import RunStep
from features.webhooks.tables import WebhookDelivery
from jobs.audit.audit import audit
from jobs.tables import Batch
from tests.effects import Effects, Killed
from tests.features.pipelines.work.run_builders import House, carry_out, step, watched
from tests.features.webhooks.builders import add_endpoint
from tests.flows.advancers import control_parts
from workers.turns.flow_work import flow_turns

_CLAIM_ENDS = "UPDATE flow SET claimed_until = clock_timestamp() - interval '1 s' WHERE claimed_by <> ''"
_numbers = itertools.count()


def kept(house: House, folder: str, run_id: str) -> None:
    """Check that all is as without a crash: one batch, each row once, one _SUCCESS, nothing else."""
    assert house.run(run_id).state == RunState.SUCCEEDED
    with house.maker() as session:
        batches = session.scalars(select(Batch)).all()
        assert len([batch for batch in batches if (batch.request_metadata or {})["run_id"] == run_id]) == 1
        assert session.scalars(text("SELECT done_at IS NOT NULL FROM dataset_file")).all() == [True]
        session.execute(text("DELETE FROM dataset_file"))
        session.commit()
    with house.maker() as session:
        assert audit(session) == []
    assert house.out(folder) == {
        f"part-{number:05d}.jsonl": [{"text": text, "length": 8 + len(text), "error": None}]
        for number, text in enumerate(["one", "three"])
    }
    assert [file["rows"] for file in house.success(folder)["files"]] == [1, 1]


def new_run(house: House) -> tuple[str, str]:
    folder = f"kill-{next(_numbers)}"
    source = {"store": "documents", "keys": "in/*.jsonl", "take": "new_since_last_success"}
    output = {"store": "results", "keys": f"{folder}/{{run}}/part-{{n}}.jsonl", "rows_a_file": 1}
    run_id = house.trigger(house.make(steps=[step(source=source, output=output)]))
    return f"{folder}/{run_id}", run_id


@pytest.mark.timeout(600)
def test_killed_between_any_two_effects_a_run_is_done_once(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"}, {"text": "three"})
    effects = Effects()
    folder, run_id = new_run(house)
    carry_out(house, run_id, watched(house, effects))
    kept(house, folder, run_id)
    assert not (house.results / folder / "_temporary" / run_id).exists()
    wanted = {"commit", "object", "create part-00001.jsonl", "create _SUCCESS", "move", "delete", "clear"}
    assert wanted <= {*effects.seen}
    for at in range(1, len(effects.seen) + 1):
        folder, run_id = new_run(house)
        dying = Effects(at)
        with pytest.raises(Killed):
            carry_out(house, run_id, watched(house, dying))
        with house.maker.begin() as session:
            session.execute(text(_CLAIM_ENDS))
        house.finish(run_id)
        kept(house, folder, run_id)


def test_killed_between_any_two_effects_a_failed_run_is_told_once(house: House) -> None:
    house.fails = {"Measure one"}
    house.put("in/a.jsonl", {"text": "one"})
    pipeline_id = house.make(steps=[step(on_error="fail")])
    with house.maker() as session:
        add_endpoint(session, house.tenant_id)

    def told(run_id: str) -> list[str]:
        about_run = WebhookDelivery.event_data["id"].astext == run_id
        with house.maker() as session:
            return list(session.scalars(select(WebhookDelivery.event_type).where(about_run)))

    effects = Effects()
    run_id = house.trigger(pipeline_id)
    carry_out(house, run_id, watched(house, effects))
    assert told(run_id) == ["run.failed"]
    for at in range(1, len(effects.seen) + 1):
        run_id = house.trigger(pipeline_id)
        with pytest.raises(Killed):
            carry_out(house, run_id, watched(house, Effects(at)))
        with house.maker.begin() as session:
            session.execute(text(_CLAIM_ENDS))
        assert house.finish(run_id).state == RunState.FAILED
        assert told(run_id) == ["run.failed"]


def test_killed_between_any_two_effects_a_run_at_its_cap_ends_once(house: House) -> None:
    house.put("in/a.jsonl", *({"text": str(number)} for number in range(3)))
    with house.maker() as session:
        add_endpoint(session, house.tenant_id)

    def at_its_cap() -> str:
        run_id = house.trigger(house.make(max_tokens=100))
        with house.maker.begin() as session:
            lifecycle.start_queued(session)
        house.runs().advance(run_id)
        house.answer_some(costs=[40, 50, 45], used=30)
        return run_id

    effects = Effects()
    watched(house, effects).advance(at_its_cap())
    assert effects.seen
    house.answer_all()
    for at in range(1, len(effects.seen) + 1):
        run_id = at_its_cap()
        with pytest.raises(Killed):
            watched(house, Effects(at)).advance(run_id)
        with house.maker.begin() as session:
            session.execute(text(_CLAIM_ENDS))
        house.runs().advance(run_id)
        run = house.run(run_id)
        assert run.state == RunState.FAILED
        assert "Step 'fields' was stopped: 60 tokens" in (run.reason or "")
        house.answer_all()
        about = WebhookDelivery.event_data["id"].astext
        with house.maker() as session:
            of_batch = select(RunStep.batch_id).where(RunStep.flow_id == run_id).scalar_subquery()
            told = session.scalars(select(WebhookDelivery.event_type).where(about.in_([run_id, of_batch])))
            assert sorted(told) == ["batch.cancelled", "run.failed"]
    with house.maker() as session:
        assert audit(session) == []


def test_a_worker_that_was_taken_for_dead_adds_nothing(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"}, {"text": "three"})
    for what in ("object", "committed", "create part-00001.jsonl", "move", "clear"):
        folder, run_id = new_run(house)

        def take_over(run_id: str = run_id) -> None:
            # as by another worker that claims it: the first one's thread no longer renews it
            with house.maker.begin() as session:
                session.execute(text("UPDATE flow SET claimed_by = NULL, claimed_until = NULL"))
            house.finish(run_id)

        slow = Effects(what, take_over)
        carry_out(house, run_id, watched(house, slow))
        assert what in slow.seen
        kept(house, folder, run_id)


def test_due_runs_go_on_one_of_each_tenant_until_they_end(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"})
    run_id = house.trigger(house.make())
    parts = control_parts(house.maker, house.storage, house.settings)
    due = flow_turns([RunRecipe(house.storage, house.settings)], parts)
    due.start()
    try:
        for _ in range(2000):
            house.answer_all()
            if RunState(house.run(run_id).state) in TERMINAL_RUN_STATES:
                break
    finally:
        due.stop()
    assert house.run(run_id).state == RunState.SUCCEEDED
