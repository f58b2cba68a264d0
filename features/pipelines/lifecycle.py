"""The lifecycle of runs: insert, read, list, start, cancel, resume, end; the only writer of their state.

Locks in the order schedule → run → batch.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from sqlalchemy import ColumnElement, Select, Table, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from features.pipelines import steps
from features.pipelines.runs import events
from features.pipelines.scheduling.planning import PlannedRun, Underway
from features.pipelines.spec import OnError, parse_definition
from features.pipelines.states import TERMINAL_RUN_STATES, RunKind, RunState
from features.pipelines.tables import Pipeline, Run, Schedule
from flows.kinds import Kind
from flows.reasons import note_reason
from flows.rows import forget
from flows.states import CLAIMABLE_STATES
from flows.tables import Flow
from jobs.errors import ConflictError
from jobs.ids import new_id
from jobs.pagination import Page
from jobs.states import EventType
from jobs.tables.base import Base, one_of

log = logging.getLogger(__name__)

_FLOW, _RUN = cast("Table", Flow.__table__), cast("Table", Run.__table__)  # each without the other

RECIPE = "run"
"""The value of `flow.recipe`."""

Row = TypeVar("Row", bound=Base)

_STARTED_AT_ONCE = 100
_INSERTED_AT_ONCE = 1000  # rows per statement, whose number of parameters has 16 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run to insert, with its pipeline and origin."""

    pipeline: Pipeline
    planned: PlannedRun
    kind: RunKind
    schedule_id: str | None
    api_key_id: str | None = None
    idempotency_key: str | None = None


def insert_run(session: Session, new: NewRun) -> Run | None:
    """Insert a run, or return None if the schedule already has one of this kind for this time."""
    return next(iter(insert_runs(session, [new])), None)


def insert_runs(session: Session, new: Sequence[NewRun]) -> list[Run]:
    """Insert runs, except those that their schedules already have; return the inserted ones, in any order."""
    ids = sorted(new_id("run") for _ in new)  # lists order runs of the same time by id
    rows = [_rows(each, run_id=run_id) for each, run_id in zip(new, ids, strict=True)]
    runs: list[Run] = []
    for start in range(0, len(rows), _INSERTED_AT_ONCE):
        runs += _insert(session, rows[start : start + _INSERTED_AT_ONCE])
    for run in runs:
        if run.state == RunState.SKIPPED:
            events.tell(session, run, EventType.RUN_SKIPPED)
    return runs


def _insert(session: Session, rows: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> Sequence[Run]:
    """Insert the rows of both tables, except runs that their schedules have; return the inserted ones."""
    session.execute(insert(_FLOW).values([flow for flow, _ in rows]))
    some = insert(_RUN).values([run for _, run in rows])
    once = some.on_conflict_do_nothing(constraint="run_once_key").returning(_RUN.c.id)
    inserted = session.scalars(once).all()
    forget(session, {run["id"] for _, run in rows} - set(inserted))
    return session.scalars(select(Run).where(Run.id.in_(inserted))).all()


def _rows(new: NewRun, *, run_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of a run: of its flow, and its own."""
    planned, pipeline = new.planned, new.pipeline
    is_skipped = planned.skipped is not None
    flow = {
        "id": run_id,
        "tenant_id": pipeline.tenant_id,
        "recipe": RECIPE,
        "state": (RunState.SKIPPED if is_skipped else RunState.QUEUED).value,
        "reason": planned.skipped,
        "lane": pipeline.id,
        "api_key_id": new.api_key_id or pipeline.api_key_id,
        "idempotency_key": new.idempotency_key,
        "ended_at": func.now() if is_skipped else None,
    }
    run = {
        "id": run_id,
        "pipeline_id": pipeline.id,
        "schedule_id": new.schedule_id,
        "kind": new.kind.value,
        "scheduled_for": planned.scheduled_for,
        "interval_start": planned.interval_start,
        "interval_end": planned.scheduled_for,
        "num_missed": planned.num_missed,
    }
    return flow, run


RUNS = Kind(Run, "run", ends=TERMINAL_RUN_STATES)


def list_runs(
    session: Session,
    tenant_id: str,
    *,
    pipeline_id: str | None = None,
    schedule_id: str | None = None,
    states: Sequence[RunState] = (),
    after: str | None = None,
    limit: int = 20,
) -> Page[Run]:
    """Return a page of a tenant's runs, newest first. Raise InputError on an unknown `after`."""
    wanted = [
        *([] if pipeline_id is None else [Run.pipeline_id == pipeline_id]),
        *([] if schedule_id is None else [Run.schedule_id == schedule_id]),
        *([Run.state.in_([state.value for state in states])] if states else []),
    ]
    return RUNS.page(session, tenant_id, *wanted, after=after, limit=limit)


def underway(session: Session, schedule_ids: Collection[str]) -> dict[str, Underway]:
    """Count the runs of schedules that have not ended."""
    are_open = Run.schedule_id.in_(schedule_ids), Run.ended_at.is_(None)
    counted = select(Run.schedule_id, Run.state, func.count()).where(*are_open).group_by(Run.schedule_id, Run.state)
    counts: dict[str | None, Counter[bool]] = {schedule_id: Counter() for schedule_id in schedule_ids}
    for schedule_id, state, number in session.execute(counted):
        counts[schedule_id][state == RunState.QUEUED] += number
    return {key: Underway(running=counts[key][False], queued=counts[key][True]) for key in schedule_ids}


def is_any_to_start(session: Session) -> bool:
    """Tell whether `start_queued` would find a run."""
    return bool(session.scalar(_IS_ANY_TO_START))


def start_queued(session: Session, *, most: int = _STARTED_AT_ONCE) -> list[str]:
    """Start the first queued run of each pipeline without a run in progress, with the current definition.

    Start at most `most`, in turns between tenants.
    """
    rows = session.execute(_TO_START, {"limit": most}).all()
    # The pipeline's lock admits one starter at a time; the index would refuse a second run.
    free = select(Pipeline).where(Pipeline.id.in_([row.pipeline_id for row in rows])).order_by(Pipeline.id)
    pipelines = {pipeline.id: pipeline for pipeline in _locked(session, free, skip_locked=True)}
    first = select(Run).where(Run.id.in_([row.id for row in rows]), Run.pipeline_id.in_(pipelines))
    runs = _locked(session, first.order_by(Run.id))
    under_way = Flow.lane.in_(pipelines) & Flow.state.in_(CLAIMABLE_STATES)
    busy = set(session.scalars(select(Flow.lane).where(under_way)))
    starting = [run for run in runs if run.state == RunState.QUEUED and run.pipeline_id not in busy]
    now = session.scalar(select(func.now()))
    for run in starting:
        run.definition = run.definition or pipelines[run.pipeline_id].definition
        run.started_at = now
        RUNS.enter(session, run, RunState.RUNNING)
    session.flush()
    return [run.id for run in starting]


def cancel_run(session: Session, tenant_id: str, run_id: str, *, reason: str) -> Run:
    """Ask a run to stop; its published files stay. Repeating it is no error. Raise ConflictError if it has ended."""
    run, is_open = RUNS.lock_to_cancel(session, tenant_id, run_id)
    if is_open:
        stop(session, run, reason=reason)
    return run


def stop(session: Session, run: Run, *, reason: str) -> None:
    """Cancel a locked run that is queued or running."""
    after = RunState.CANCELLED if run.state == RunState.QUEUED else RunState.CANCELLING
    run.reason = reason
    move_run(session, run, after)


def stop_all(session: Session, of_schedule: str, *, but: Collection[str], reason: str) -> None:
    """Cancel the runs of a schedule that have not ended, except those in `but`."""
    open_runs = select(Run).where(
        Run.schedule_id == of_schedule,
        Run.state.in_([RunState.QUEUED.value, RunState.RUNNING.value]),
        Run.id.not_in(but),
    )
    for run in _locked(session, open_runs.order_by(Run.id)):
        stop(session, run, reason=reason)


def stop_queued(session: Session, of: ColumnElement[bool], *, reason: str) -> None:
    """Cancel the queued runs that match `of`."""
    waiting = select(Run).where(of, Run.state == RunState.QUEUED.value)
    for run in _locked(session, waiting.order_by(Run.id)):
        stop(session, run, reason=reason)


def stop_queued_of(session: Session, tenant_id: str) -> None:
    """Cancel the queued runs of a tenant that ends: none of them would ever start."""
    stop_queued(session, Run.tenant_id == tenant_id, reason="its tenant was deleted")


def resume_run(session: Session, tenant_id: str, run_id: str) -> Run:
    """Resume a failed run where it stopped, with the current caps of its pipeline. Raise ConflictError."""
    run = RUNS.lock_own(session, tenant_id, run_id)
    if run.state != RunState.FAILED:
        raise ConflictError(
            f"Cannot resume a run with status '{run.state}': only a failed one can be resumed. Trigger a new run "
            "instead.",
            code="run_not_resumable",
        )
    run.reason, run.error_code, run.num_tries, run.look_at = None, None, 0, None
    if run.definition is not None:
        run.definition = run.definition | _caps_of(session.get_one(Pipeline, run.pipeline_id))
    all_steps = parse_definition(run.definition).steps if run.definition else ()
    failing = [step.name for step in all_steps if step.on_error is OnError.FAIL]
    steps.reset_unfinished(session, run.id, fails_on_error=failing)
    move_run(session, run, RunState.QUEUED)
    return run


def end_run(session: Session, run: Run, after: RunState, *, reason: str | None = None) -> None:
    """End a locked run; its schedule counts failures in a row, and pauses when there are too many."""
    if reason is not None:
        note_reason(run, reason)
    move_run(session, run, after)
    if run.schedule_id is not None and after in (RunState.SUCCEEDED, RunState.FAILED):
        _count(session, run.schedule_id, has_failed=after is RunState.FAILED)


def move_run(session: Session, run: Run, after: RunState) -> None:
    """Move a locked run to its next state after its start. Raise IllegalMoveError."""
    if after in (RunState.SUCCEEDED, RunState.FAILED):
        events.tell_of_late_runs(session, of_run=run.id)  # while it is still late
    RUNS.move(session, run, after)
    if after is RunState.FAILED:
        events.tell(session, run, EventType.RUN_FAILED)


def _caps_of(pipeline: Pipeline) -> dict[str, Any]:
    """Return the caps, which may be raised for runs that have begun, as they do not affect the output."""
    return {name: pipeline.definition.get(name) for name in ("max_tokens", "max_cost")}


def _locked(session: Session, query: Select[Row], *, skip_locked: bool = False) -> Sequence[Row]:
    """Return rows, refreshed and locked until the transaction ends."""
    locked = query.with_for_update(key_share=True, skip_locked=skip_locked)
    return session.scalars(locked, execution_options={"populate_existing": True}).all()


def _count(session: Session, schedule_id: str, *, has_failed: bool) -> None:
    if not has_failed:
        session.execute(update(Schedule).where(Schedule.id == schedule_id).values(num_failures=0))
        return
    session.execute(_COUNT_FAILURE, {"schedule_id": schedule_id})


# After max_failures the schedule is paused until somebody resumes it.
_COUNT_FAILURE = text("""
    UPDATE schedule SET num_failures = num_failures + 1,
        paused_at = CASE WHEN paused_at IS NULL AND num_failures + 1 >= max_failures THEN now() ELSE paused_at END,
        pause_reason = CASE WHEN paused_at IS NULL AND num_failures + 1 >= max_failures
            THEN (num_failures + 1) || ' runs in a row failed' ELSE pause_reason END
    WHERE id = :schedule_id
""")

_CAN_START = f"""
    FROM flow JOIN run ON run.id = flow.id JOIN tenant ON tenant.id = flow.tenant_id
    WHERE flow.recipe = '{RECIPE}' AND flow.ended_at IS NULL AND flow.state = 'queued'
        AND tenant.deleted_at IS NULL AND tenant.disabled_at IS NULL AND NOT EXISTS (
            SELECT FROM flow AS other WHERE other.lane = flow.lane AND {one_of("other.state", CLAIMABLE_STATES)}
        )
"""
_IS_ANY_TO_START = text(f"SELECT EXISTS (SELECT {_CAN_START})")
_TO_START = text(f"""
    SELECT id, pipeline_id FROM (
        SELECT DISTINCT ON (run.pipeline_id) run.id, run.pipeline_id, flow.tenant_id, run.scheduled_for
        {_CAN_START}
        ORDER BY run.pipeline_id, run.scheduled_for, run.id
    ) AS first
    ORDER BY row_number() OVER (PARTITION BY tenant_id ORDER BY scheduled_for, id), scheduled_for, id LIMIT :limit
""")
