"""Validate a batch: stream its input, plan its chunks, and set it going or fail it.

What is good and bad is decided in scan.py. It is written in short transactions under a claim, none of them open while
the object store is asked; the last one starts the batch, or fails it with nothing left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from jobs import decisions, served_models
from jobs.accounts import budgets
from jobs.batches import planned
from jobs.batches.claims import VALIDATIONS, BatchWork
from jobs.batches.lifecycle import move_batch
from jobs.batches.planned import Plan
from jobs.batches.scan import Scan, too_many_problems, whole_file_problem
from jobs.chunks import fairshare, fleet, ready_queues
from jobs.claims.work import work_on
from jobs.decisions import Kind
from jobs.errors import NotFoundError
from jobs.lines.endpoints import kind_of
from jobs.lines.reading import iter_lines
from jobs.settings import Settings
from jobs.states import BatchState, InvalidLines
from jobs.storage import Storage
from jobs.tables import Batch, File


def validate_batch(
    maker: sessionmaker[Session],
    storage: Storage,
    batch_id: str,
    *,
    settings: Settings,
    hold_sessions: sessionmaker[Session] | None = None,
) -> BatchState | None:
    """Validate a batch and return the state it moved to; None where there was nothing to do (a repeated hint).

    With invalid_lines "skip", bad lines become error results, counted as failed and unbilled when the batch starts.
    `hold_sessions` as for `ClaimedWork`. Raises ServiceError where the store fails: whoever comes next begins anew.
    """
    return work_on(
        maker,
        VALIDATIONS,
        batch_id,
        lambda work: _validate(work, storage, settings),
        settings=settings,
        hold_sessions=hold_sessions,
    )


def _validate(work: BatchWork, storage: Storage, settings: Settings) -> BatchState:
    if work.claim.fence > 1:
        planned.drop(work)
    with work.reading() as session:
        batch = session.get_one(Batch, work.claim.id)
        file = session.get_one(File, batch.input_file_id)
        models = served_models.names_for(session, kind_of(batch.endpoint))
        kinds, contexts = served_models.kinds_by_name(session), fleet.contexts(session)
    scan = Scan(endpoint=batch.endpoint, models=models, kinds=kinds, settings=settings, contexts=contexts)
    is_strict = batch.invalid_lines == InvalidLines.FAIL
    allowed = _allowed_problems(file, settings)
    plan = Plan(work)
    try:
        _read_input(work, storage, file, scan=scan, plan=plan, allowed_problems=0 if is_strict else allowed)
        problem = scan.file_problem() or (None if is_strict else too_many_problems(scan, allowed))
    except NotFoundError as error:
        problem = whole_file_problem("file_not_found", error.message)
    if problem is None and not (is_strict and scan.num_problems):
        started = _start(work, scan, plan)
        if started is not None:
            return started
        problem = whole_file_problem(
            "model_not_found", f"the model {scan.model!r} was removed just now, or answers other lines now"
        )
    planned.drop(work)
    return _fail(work, scan, [problem, *scan.listed] if problem else scan.listed)


def _allowed_problems(file: File, settings: Settings) -> int:
    """A bad line costs its tenant nothing and leaves an error of 200 bytes: good ones, which cost, must outweigh it."""
    return max(settings.max_invalid_lines, (file.num_requests or 0) // 10)


def _read_input(
    work: BatchWork, storage: Storage, file: File, *, scan: Scan, plan: Plan, allowed_problems: int
) -> None:
    """Have every line checked, and what comes of it planned as long as the batch may start."""
    pieces = work.checked(storage.iter_chunks(file.object_key))
    for line in iter_lines(pieces, max_line_bytes=scan.settings.max_line_bytes):
        problem = scan.check(line)
        if scan.num_problems > allowed_problems:  # the batch fails, whatever comes
            scan.planner.pop_closed()
            continue
        if problem is not None:
            plan.add_error(problem)
        plan.write_if_full(scan.planner, model=scan.model)


def _fail(work: BatchWork, scan: Scan, errors: Sequence[dict[str, Any]]) -> BatchState:
    with work.writing() as (session, batch):
        batch.model = scan.model
        batch.errors = list(errors)
        batch.num_unlisted_errors = scan.num_problems - len(scan.listed)
        move_batch(session, batch, BatchState.FAILED)
        _note(session, batch, scan)
        budgets.release(session, batch)
        _count_refused(session, batch, scan)
    return BatchState.FAILED


def _note(session: Session, batch: Batch, scan: Scan) -> None:
    found = f"{scan.num_requests:,} lines, {scan.num_problems:,} of them refused"
    if scan.num_copies:
        found += f", {scan.num_copies:,} the same as earlier ones"
    decisions.note(session, batch.id, Kind.VALIDATED, detail=found)


def _count_refused(session: Session, batch: Batch, scan: Scan) -> None:
    refused = budgets.RefusedInput(lines=scan.num_problems, size_bytes=scan.problem_bytes)
    budgets.count_refused(session, batch.tenant_id, refused)


def _is_held(session: Session, scan: Scan) -> bool:
    assert scan.model is not None
    return served_models.hold_model(session, scan.model, kind_of(scan.endpoint))


def _start(work: BatchWork, scan: Scan, plan: Plan) -> BatchState | None:
    """Set the batch going; with no line to run it goes on to its files at once. None where its model is gone."""
    if scan.model is not None:
        # Before the chunks: whoever has open chunks already keeps the virtual time it has. And by itself: claims wait
        # for that row, and a million chunks take their time.
        with work.writing() as (session, batch):
            fairshare.activate(session, model=scan.model, priority=batch.priority, tenant_id=batch.tenant_id)
    with work.writing() as (session, batch):
        if scan.model is not None and not _is_held(session, scan):
            return None
        batch.model = scan.model
        batch.num_requests = scan.num_requests
        batch.num_failed = scan.num_problems
        plan.publish(session, batch, scan.planner, model=scan.model)
        if scan.model is not None:  # some line can run
            ready_queues.mark(session, model=scan.model, priority=batch.priority, tenant_id=batch.tenant_id)
            move_batch(session, batch, BatchState.IN_PROGRESS)
        else:
            move_batch(session, batch, BatchState.FINALIZING, outcome=BatchState.COMPLETED)
        _note(session, batch, scan)
        _count_refused(session, batch, scan)
        return BatchState(batch.state)
