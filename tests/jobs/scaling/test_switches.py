"""Tests of the rows and switches of a worker that serves one of several models at a time: `m` and `other`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from jobs import metrics, served_models
from jobs.chunks import fleet, unserved
from jobs.errors import ConflictError
from jobs.forecasts import snapshot
from jobs.lines.endpoints import LineKind
from jobs.overview import fleet as overview_fleet
from jobs.scaling import switches
from jobs.scaling.demands import STARTUP_SECONDS, demands
from jobs.scaling.limits import Limits, set_limits
from jobs.scaling.switches import LOADING, Announced, Models, OutOfServiceError
from jobs.served_models import ModelEmbedding
from jobs.states import Priority
from jobs.tables import Batch, Chunk, DueWork, Forecast, InputCount, Tenant, Worker

Run = Callable[..., Batch]
Line = Callable[..., str]
BOTH = Models(names=("m", "other"))


@pytest.fixture
def run_other(run: Run, request_line: Line, session: Session) -> Run:
    """Submit and validate a batch for `other`, which is due in minutes."""

    def run_other(num_lines: int, *, minutes: float) -> Batch:
        body = {"model": "other", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10}
        lines = [request_line(f"b{number}", body=body) for number in range(num_lines)]
        return run(lines, expires_at=in_minutes(minutes))

    return run_other


def in_minutes(minutes: float) -> datetime:
    return datetime.now(UTC) + timedelta(minutes=minutes)


def serve(session: Session, announced: Announced | None) -> Announced:
    """Take an announced row over, as the worker of its model does."""
    assert announced is not None
    fleet.register(session, worker_id=announced.worker_id, model=announced.model, max_chunks=3, max_model_len=64)
    session.commit()
    return announced


def measure(session: Session) -> None:
    snapshot.take(session)
    session.commit()


def row_of(session: Session, announced: Announced) -> Worker:
    return session.get_one(Worker, announced.worker_id, populate_existing=True)


def wait_of(session: Session, batch: Batch) -> str:
    return unserved.waits_for(session, [batch])[batch.id]


def test_an_announced_model_is_not_served_yet_and_its_row_keeps_its_models(session: Session, run: Run) -> None:
    batch = run(2)
    announced = switches.begin(session, BOTH, before=None)
    assert announced is not None
    row = row_of(session, announced)
    assert (row.model, row.may_serve, row.max_chunks, fleet.out_reason_of(row)) == ("m", ["m", "other"], 0, LOADING)
    assert (fleet.live_models(session), fleet.hint_allowance(session, "m")) == ([], 0)
    assert "loads the model 'm'" in wait_of(session, batch)
    assert overview_fleet.workers(session, most=9)[0].is_loading
    measure(session)
    assert session.get_one(Forecast, batch.id).seconds is None, "no worker serves it yet"

    serve(session, announced)
    row = row_of(session, announced)
    assert (row.may_serve, row.max_chunks, fleet.out_reason_of(row)) == (["m", "other"], 3, None)
    assert (fleet.live_models(session), unserved.waits_for(session, [batch])) == (["m"], {})
    assert not overview_fleet.workers(session, most=9)[0].is_loading


def test_a_worker_switches_to_work_that_would_be_late(session: Session, run: Run, run_other: Run) -> None:
    set_limits(session, "other", Limits(max_workers=1, startup_seconds=60, expected_rate=1.0))
    run(8, expires_at=in_minutes(600))
    serving = serve(session, switches.begin(session, BOTH, before=None))
    batch = run_other(8, minutes=6)
    measure(session)
    upcoming = switches.switch(session, BOTH, serving, served_seconds=600)
    assert upcoming is not None
    assert (serving.model, upcoming.model) == ("m", "other")
    old, new = row_of(session, serving), row_of(session, upcoming)
    assert old.draining_at is not None
    assert (new.draining_at, new.max_chunks, new.may_serve) == (None, 0, ["m", "other"])
    assert "loads the model 'other'" in wait_of(session, batch)
    (other,) = demands(session, ["other"], own_ids=[], start_seconds={})
    assert other.others == 1, "another worker of both need not come, too"


def test_a_worker_stays_for_work_that_can_wait_and_where_an_operator_has_drained_it(
    session: Session, run: Run, run_other: Run
) -> None:
    run(8, expires_at=in_minutes(600))
    serving = serve(session, switches.begin(session, BOTH, before=None))
    batch = run_other(8, minutes=600)
    measure(session)
    assert switches.switch(session, BOTH, serving, served_seconds=600) is None
    assert "may serve the model 'other' serves another model" in wait_of(session, batch)

    session.execute(update(Chunk).where(Chunk.model == "m").values(state="done"))
    session.execute(update(Batch).where(Batch.model == "m").values(state="completed"))
    measure(session)
    row = row_of(session, serving)
    fleet.set_draining(session, row, is_draining=True)
    assert switches.switch(session, BOTH, serving, served_seconds=600) is None
    assert "No running worker serves" in wait_of(session, batch)
    fleet.set_draining(session, row, is_draining=False)
    upcoming = switches.switch(session, BOTH, serving, served_seconds=600)
    assert upcoming is not None
    assert upcoming.model == "other", "it is free"


def test_a_model_that_failed_is_left_out_and_the_others_are_served(session: Session, run: Run) -> None:
    batch = run(4)
    first = switches.begin(session, BOTH, before=None)
    assert first is not None
    failed = Models(names=BOTH.names, left_out={"m": "no weights."}, paused=["m"])
    switches.wait(session, first, failed, reason="no weights.")
    assert "'m' cannot be loaded now" in wait_of(session, batch)
    assert not overview_fleet.workers(session, most=9)[0].is_loading
    out = [sample.labels for sample in metrics.read_samples(session) if sample.meter.name.endswith("workers_out")]
    assert [(labels["model"], labels["reason"]) for labels in out] == [("m", "no weights.")]

    second = switches.begin(session, failed, before=first.worker_id)
    assert second is not None
    assert (second.model, row_of(session, first).stopped_at is None) == ("other", False)
    serve(session, second)
    assert "'m' cannot be loaded now" in wait_of(session, batch)
    all_out = Models(names=BOTH.names, left_out={"m": "no", "other": "no"}, paused=["m", "other"])
    assert switches.begin(session, all_out, before=second.worker_id) is None
    assert row_of(session, second).stopped_at is None, "the row shows the reasons"


def test_an_announced_row_stays_alive_until_it_is_taken_over(session: Session) -> None:
    announced = switches.begin(session, Models(names=("m", "other")), before=None)
    assert announced is not None
    long_ago = datetime.now(UTC) - timedelta(minutes=1)
    for is_taken in (False, True):
        if is_taken:
            serve(session, announced)
        session.execute(update(Worker).values(heartbeat_at=long_ago))
        switches.keep_announced(session, announced.worker_id)
        assert bool(fleet.live_workers(session)) is not is_taken


def test_demands_have_work_by_class_rates_and_start_times(session: Session, run: Run) -> None:
    switches.begin(session, BOTH, before=None)
    session.commit()
    soon, late = in_minutes(60).replace(microsecond=0), in_minutes(120).replace(microsecond=0)
    run(4, priority="urgent", expires_at=late)
    run(4, priority="bulk", expires_at=soon)
    measure(session)
    m, other = demands(session, ["m", "other"], own_ids=[], start_seconds={"m": 7.0})
    assert (m.start_seconds, other.start_seconds) == (7.0, STARTUP_SECONDS)
    (urgent,), (bulk,) = m.dues[Priority.URGENT], m.dues[Priority.BULK]
    assert (urgent.at, bulk.at) == (late.timestamp(), soon.timestamp())
    assert bulk.tokens == 2 * urgent.tokens > 0, "the urgent work goes first"
    assert (m.rate, m.is_asked, other.dues, other.is_asked) == (None, True, {}, False)

    set_limits(session, "m", Limits(max_workers=1, startup_seconds=9, expected_rate=5.0))
    (m,) = demands(session, ["m"], own_ids=[], start_seconds={})
    assert (m.start_seconds, m.rate) == (9.0, 5.0)
    session.execute(update(DueWork).values(measured_at=datetime.now(UTC) - timedelta(minutes=6)))
    (m,) = demands(session, ["m"], own_ids=[], start_seconds={})
    assert (m.dues, m.is_asked) == ({}, True), "an old measurement is not trusted"


def test_work_without_a_deadline_is_asked_for(session: Session, run: Run) -> None:
    def asked(**own: str) -> list[str]:
        ids = list(own.values())
        return [one.model for one in demands(session, ["m", "new"], own_ids=ids, start_seconds={}) if one.is_asked]

    run(4)
    served_models.add_model(session, "new", "/models/new", is_checked=False)
    assert asked() == ["m", "new"], "ready chunks, and a model that nobody has loaded"
    session.execute(update(Chunk).values(state="leased", worker_id="w", lease_until=in_minutes(1)))
    served_models.put_model(session, "new", "/models/new", is_checked=True)
    assert asked() == []
    assert asked(own="w") == ["m"], "it has not finished its own chunks"


@pytest.mark.parametrize(
    ("columns", "counts"),
    [
        ({}, True),
        ({"engine": "tokenmill"}, True),
        ({"engine": "vllm", "engine_choice": "any"}, True),
        ({"engine": "vllm"}, False),
        ({"server_model": "law-lora"}, False),
    ],
)
def test_work_that_our_engine_may_not_answer_is_no_demand(
    session: Session, run: Run, columns: dict[str, str], *, counts: bool
) -> None:
    switches.begin(session, BOTH, before=None)
    run(4)
    if columns:
        session.execute(update(Batch).values(columns))
    measure(session)
    (m,) = demands(session, ["m"], own_ids=[], start_seconds={})
    assert (bool(m.dues), m.is_asked, m.has_chunks) == (counts, counts, counts)


@pytest.mark.parametrize(("hours", "is_asked"), [(23, True), (25, False)])
def test_an_input_that_nobody_may_count_any_more_is_not_asked_for(
    session: Session, tenant: Tenant, run: Run, hours: int, *, is_asked: bool
) -> None:
    batch = run(1)
    session.execute(update(Chunk).values(state="done"))
    session.add(
        InputCount(
            id="estimate_1",
            tenant_id=tenant.id,
            input_file_id=batch.input_file_id,
            endpoint="/v1/chat/completions",
            model="m",
            priority="normal",
            completion_window="24h",
            created_at=in_minutes(-60 * hours),
        )
    )
    session.flush()
    (m,) = demands(session, ["m"], own_ids=[], start_seconds={})
    assert (m.is_asked, m.has_chunks) == (is_asked, False)


def test_a_worker_that_loads_a_model_is_no_other_that_serves_it(session: Session) -> None:
    announced = switches.begin(session, BOTH, before=None)
    assert announced is not None
    served_models.add_model(session, "m", "/models/m")
    served_models.note_kind(session, "m", LineKind.POOL)
    made = ModelEmbedding(model_sha256="h", tokenizer_sha256="t", pooling="mean", dimensions=2, max_tokens=8)
    for dtype in ("float32", "bfloat16"):
        served_models.note_embedding(session, "m", replace(made, dtype=dtype))
    serve(session, announced)
    with pytest.raises(ConflictError, match=announced.worker_id):
        served_models.note_kind(session, "m", LineKind.GENERATE)


def test_a_worker_that_took_itself_out_cannot_serve_its_model(session: Session) -> None:
    serving = serve(session, switches.begin(session, BOTH, before=None))
    fleet.heartbeat(session, serving.worker_id, out_reason="its engine returned no numbers")
    fleet.set_draining(session, row_of(session, serving), is_draining=True)
    with pytest.raises(OutOfServiceError, match="no numbers"):
        switches.switch(session, BOTH, serving, served_seconds=600)


def test_work_that_other_workers_hold_keeps_nobody(session: Session, run: Run) -> None:
    switches.begin(session, BOTH, before=None)
    run(4)
    measure(session)
    for state, has_work in (("ready", True), ("leased", False)):
        session.execute(update(Chunk).values(state=state, worker_id="w", lease_until=in_minutes(1)))
        (m,) = demands(session, ["m"], own_ids=[], start_seconds={})
        assert (bool(m.dues), m.is_asked) == (has_work, has_work)


def test_a_model_in_turn_is_measured_and_its_lines_do_not_leave_the_house(session: Session, run_other: Run) -> None:
    serve(session, switches.begin(session, BOTH, before=None))
    batch = run_other(4, minutes=600)
    measure(session)
    assert {row.model for row in session.query(DueWork)} == {"m", "other"}
    assert not session.get_one(Forecast, batch.id).is_late
    session.execute(update(Worker).values(left_out={"other": "no weights."}))
    measure(session)
    session.expire_all()
    assert session.get_one(Forecast, batch.id).is_late, "nobody of the house can serve it"


def test_a_model_whose_turn_comes_is_not_without_workers(session: Session) -> None:
    serve(session, switches.begin(session, BOTH, before=None))
    samples = [sample for sample in metrics.read_samples(session) if sample.meter.name.endswith("_workers")]
    assert {sample.labels["model"]: getattr(sample, "value", None) for sample in samples} == {"m": 1, "other": 0}
