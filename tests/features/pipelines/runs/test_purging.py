"""Tests of forgetting old runs; never unfinished ones, nor anything that incremental sources need."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from features.pipelines import lifecycle, steps
from features.pipelines.external.store import Found
from features.pipelines.runs.purging import delete_run, purge_runs
from features.pipelines.scheduling import schedules
from features.pipelines.states import TERMINAL_RUN_STATES, RunState
from features.pipelines.tables import DatasetFile, Pipeline, Run, RunStep
from jobs.errors import ConflictError, NotFoundError
from jobs.ids import new_id
from tests.all_settings import Settings

AGE = timedelta(days=90)
MakeRun = Callable[..., str]


@pytest.fixture
def make_run(session: Session, pipeline: Pipeline) -> MakeRun:
    """Insert a run of so many days ago that read files; return its id."""

    def make(days: int, state: str = "succeeded", *, took: dict[str, str] | None = None, **columns: Any) -> str:
        at = datetime.now(UTC) - timedelta(days=days)
        is_over = RunState(state) in TERMINAL_RUN_STATES
        times: dict[str, Any] = {"scheduled_for": at, "interval_start": at, "interval_end": at, "created_at": at}
        run = Run(
            id=new_id("run"),
            tenant_id=pipeline.tenant_id,
            pipeline_id=pipeline.id,
            kind="manual",
            state=state,
            ended_at=at if is_over else None,
            **times | columns,
        )
        session.add(run)
        session.flush()
        session.add(RunStep(flow_id=run.id, number=0, name="fields", num_lines=0))
        for key, version in (took or {}).items():
            session.add(
                DatasetFile(
                    pipeline_id=pipeline.id,
                    step="fields",
                    key=key,
                    version=version,
                    size_bytes=1,
                    run_id=run.id,
                    done_at=at if state == "succeeded" else None,
                )
            )
        session.commit()
        return run.id

    return make


def runs(session: Session) -> set[str]:
    session.commit()
    return set(session.scalars(select(Run.id)))


def taken(session: Session) -> set[tuple[str, str, str | None]]:
    session.commit()
    return {(row.key, row.version, row.run_id) for row in session.scalars(select(DatasetFile))}


def test_runs_that_ended_long_ago_are_forgotten_with_their_steps(
    session: Session, maker: sessionmaker[Session], make_run: MakeRun
) -> None:
    for state in TERMINAL_RUN_STATES:
        make_run(91, state)
    kept = {make_run(89, "failed"), make_run(1), make_run(500, "queued"), make_run(400, "running")}
    assert purge_runs(maker, age=AGE) == len(TERMINAL_RUN_STATES)
    assert runs(session) == kept
    assert set(session.scalars(select(RunStep.flow_id))) == kept
    assert purge_runs(maker, age=AGE) == 0


def test_many_runs_are_forgotten_some_at_a_time(
    maker: sessionmaker[Session], make_run: MakeRun, statements: list[tuple[str, Any]]
) -> None:
    for _ in range(101):
        make_run(91, "failed")
    statements.clear()
    assert purge_runs(maker, age=AGE) == 101
    forgotten = [
        values["run_ids"] for statement, values in statements if "DELETE FROM dataset_file WHERE run_id =" in statement
    ]
    assert [len(run_ids) for run_ids in forgotten] == [50, 50, 1]


def test_a_failed_run_that_was_resumed_is_under_way_again_and_stays(
    session: Session, maker: sessionmaker[Session], make_run: MakeRun, pipeline: Pipeline
) -> None:
    failed = make_run(91, "failed")
    lifecycle.resume_run(session, pipeline.tenant_id, failed)
    assert purge_runs(maker, age=AGE) == 0, "it is locked"
    session.commit()
    assert purge_runs(maker, age=AGE) == 0
    assert runs(session) == {failed}


def test_a_run_that_is_forgotten_while_it_is_asked_for_is_not_found(
    session: Session, maker: sessionmaker[Session], make_run: MakeRun, pipeline: Pipeline
) -> None:
    failed = make_run(91, "failed")
    session.get(Run, failed)
    purge_runs(maker, age=AGE)
    for act in (lifecycle.resume_run, lambda *given: lifecycle.cancel_run(*given, reason="by hand")):
        with pytest.raises(NotFoundError):
            act(session, pipeline.tenant_id, failed)


def test_the_last_run_that_succeeded_stays_for_the_interval_of_the_next_one(
    session: Session, maker: sessionmaker[Session], make_run: MakeRun, pipeline: Pipeline
) -> None:
    make_run(300)
    last = make_run(200)
    make_run(100, "failed")
    assert purge_runs(maker, age=AGE) == 2
    assert runs(session) == {last}
    end = session.get_one(Run, last).interval_end
    triggered = schedules.trigger(session, pipeline.tenant_id, pipeline.id, settings=Settings())
    assert triggered.interval_start == end


def test_what_was_taken_stays_known_as_it_was_last(
    session: Session, maker: sessionmaker[Session], make_run: MakeRun, pipeline: Pipeline
) -> None:
    make_run(300, took={"a": "1", "b": "1"})
    make_run(200, took={"b": "2"})
    make_run(150, "failed", took={"c": "1"})
    last = make_run(1, took={"d": "1"})
    assert purge_runs(maker, age=AGE) == 3
    assert taken(session) == {("a", "1", None), ("b", "2", None), ("d", "1", last)}
    found = [Found(key=key, size_bytes=1, version=version) for key, version in (("a", "1"), ("b", "2"), ("c", "1"))]
    assert [each.key for each in steps.untaken(session, pipeline.id, "fields", found)] == ["c"]


def test_what_a_forgotten_run_took_is_replaced_when_it_is_taken_again(
    session: Session, maker: sessionmaker[Session], make_run: MakeRun
) -> None:
    make_run(300, took={"a": "1"})
    make_run(250)
    purge_runs(maker, age=AGE)
    make_run(200, took={"a": "2"})
    last = make_run(1)
    purge_runs(maker, age=AGE)
    assert taken(session) == {("a", "2", None)}
    assert runs(session) == {last}


def test_a_deleted_pipeline_leaves_nothing_once_its_runs_are_forgotten(
    session: Session, maker: sessionmaker[Session], make_run: MakeRun, pipeline: Pipeline
) -> None:
    make_run(300, took={"a": "1"})
    make_run(200, took={"b": "1"})
    purge_runs(maker, age=AGE)
    under_way = make_run(100, "running", took={"c": "1"})
    session.execute(text("UPDATE pipeline SET deleted_at = now()"))
    session.commit()
    purge_runs(maker, age=AGE)
    assert taken(session) == {("c", "1", under_way)}
    assert runs(session) == {under_way}


def test_a_run_that_has_ended_is_deleted_and_what_it_took_stays_known(
    session: Session, pipeline: Pipeline, make_run: MakeRun
) -> None:
    deleted, last = make_run(2, took={"a.jsonl": "1"}), make_run(1)
    failed = make_run(0, "failed")
    for run_id in (deleted, failed):
        delete_run(session, pipeline.tenant_id, run_id)
    assert runs(session) == {last}
    assert taken(session) == {("a.jsonl", "1", None)}


@pytest.mark.parametrize("state", ["queued", "running", "cancelling", "succeeded"])
def test_a_run_that_somebody_still_asks_for_is_not_deleted(
    session: Session, pipeline: Pipeline, make_run: MakeRun, state: str
) -> None:
    run_id = make_run(1, state)
    with pytest.raises(ConflictError, match="Cannot delete"):
        delete_run(session, pipeline.tenant_id, run_id)
    with pytest.raises(NotFoundError):
        delete_run(session, "tenant_other", run_id)
    assert runs(session) == {run_id}
