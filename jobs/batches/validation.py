"""Validate a batch: stream its input, plan its chunks, and start or fail it.

scan.py decides which lines are valid. Results are written in short transactions under a claim, none of them open during
a request to the object store; the last one starts the batch, or fails it and leaves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from jobs import decisions, hooks, served_adapters, served_models
from jobs.accounts import budgets
from jobs.accounts.reading import expected_milliseconds
from jobs.accounts.refused_input import RefusedInput, count_refused
from jobs.batches import missing_inputs, planned
from jobs.batches.claims import VALIDATIONS, BatchWork
from jobs.batches.lifecycle import move_batch
from jobs.batches.missing_inputs import PutOffError
from jobs.batches.planned import Plan
from jobs.batches.scan import Scan, allowed_problems, too_many_invalid, whole_file_problem
from jobs.chunks import fairshare, fleet, queue_marks
from jobs.claims.work import work_on
from jobs.database import find_row
from jobs.decisions import Kind
from jobs.engines import served
from jobs.engines.names import OWN
from jobs.errors import NotFoundError
from jobs.lines.endpoints import kind_of
from jobs.lines.identical import IdenticalLines, LastingIdenticalLines
from jobs.lines.reading import iter_lines
from jobs.settings import Settings
from jobs.states import BatchState, InvalidLines
from jobs.storage import Storage
from jobs.tables import Batch, File

_FEW_CHUNKS = 10
"""Chunks that are inserted while claims wait for their tenant's row."""


def validate_batch(
    maker: sessionmaker[Session],
    storage: Storage,
    batch_id: str,
    *,
    settings: Settings,
    hold_sessions: sessionmaker[Session] | None = None,
) -> BatchState | None:
    """Validate a batch and return the state it moved to; None where there was nothing to do (a repeated hint).

    With invalid_lines "skip", invalid lines become error results, counted as failed and unbilled when the batch starts.
    A batch whose input is missing in the store is put off, and fails the second time. Where lines are to be filled, the
    batch stays validating and is held by the feature that fills them; then it is validated again. `hold_sessions` as
    for `ClaimedWork`. Raises ServiceError where the store fails: the next worker starts over.
    """
    return work_on(
        maker,
        VALIDATIONS,
        batch_id,
        lambda work: _validate_unless_put_off(work, storage, settings),
        settings=settings,
        hold_sessions=hold_sessions,
    )


def _validate_unless_put_off(work: BatchWork, storage: Storage, settings: Settings) -> BatchState | None:
    try:
        return _validate(work, storage, settings)
    except PutOffError:
        return None


def _validate(work: BatchWork, storage: Storage, settings: Settings) -> BatchState | None:
    with work.reading() as session:
        batch = find_row(session, Batch, work.claim.id)
        assert batch is not None, "rows of batches stay"
        file = find_row(session, File, batch.input_file_id)
        assert file is not None, "rows of files stay"
        scan = scan_of(session, batch, settings)
    if batch.held_by is not None:
        return None
    if work.claim.fence > 1:
        planned.drop(work)
    plan = Plan(work)
    try:
        problem = _read_input(work, storage, batch, file, scan=scan, plan=plan) or _irreproducible(batch, scan)
    except NotFoundError as error:
        missing_inputs.require_lost(work)
        problem = whole_file_problem("file_not_found", error.message)
    if problem is None and not (scan.num_problems and batch.invalid_lines == InvalidLines.FAIL):
        if scan.num_to_fill:
            return _hold(work, scan)
        started = _start(work, scan, plan)
        if started is not None:
            return started
        problem = whole_file_problem(
            "model_not_found", f"the model {scan.model!r} was removed just now, or now answers other lines"
        )
    planned.drop(work)
    return _fail(work, scan, [problem, *scan.listed] if problem else scan.listed)


def scan_of(session: Session, batch: Batch, settings: Settings, *, identical: IdenticalLines | None = None) -> Scan:
    """Return the scan of a batch's lines, with the models that are served now."""
    offered = served_models.offered_models(session)
    kinds = served_models.kinds_of(offered)
    return Scan(
        endpoint=batch.endpoint,
        models=served_models.names_of(kinds, kind_of(batch.endpoint)),
        kinds=kinds,
        settings=settings,
        contexts=fleet.contexts(session),
        engines=served.by_model(session),
        adapters=served_adapters.among(offered),
        line_milliseconds=expected_milliseconds(session, batch),
        is_retry=batch.retry_of is not None,
        is_filled=batch.source_file_id is not None,
        identical=identical or (LastingIdenticalLines() if batch.is_growing else IdenticalLines()),
    )


def _hold(work: BatchWork, scan: Scan) -> BatchState:
    """Let a feature fill the lines that ask for it; chunks are planned afterwards."""
    planned.drop(work)
    with work.writing() as (session, batch):
        batch.input_missed_at = None  # it was read
        _name_model(batch, scan)
        batch.held_by = hooks.hold(session, batch)
    return BatchState.VALIDATING


def _read_input(
    work: BatchWork, storage: Storage, batch: Batch, file: File, *, scan: Scan, plan: Plan
) -> dict[str, Any] | None:
    """Check every line and plan the results; return the problem of the file as a whole.

    Raises NotFoundError where the store does not have it.
    """
    num_requests = file.num_requests or 0
    allowed = allowed_problems(num_requests, scan.settings)
    is_strict = batch.invalid_lines == InvalidLines.FAIL
    _read_lines(work, storage, file, scan=scan, plan=plan, allowed_problems=0 if is_strict else allowed)
    if (problem := scan.file_problem()) is not None or is_strict:
        return problem
    return too_many_invalid(scan.num_problems, num_requests=num_requests, settings=scan.settings)


def _irreproducible(batch: Batch, scan: Scan) -> dict[str, Any] | None:
    """Return the problem of a batch that is to be reproducible, of a model that only engines of others have served."""
    engines = scan.engines.get(scan.model or "", ())
    if not batch.is_reproducible or not engines or any(engine.kind == OWN for engine in engines):
        return None
    asked = ", ".join(engine.label for engine in engines)
    message = (
        f"reproducible is promised by our own engine alone, and the model {scan.model!r} is served by others (asked: "
        f"{asked}); leave it out, or have the model served by our engine"
    )
    return whole_file_problem("unsupported_parameter", message) | {"param": "reproducible"}


def _read_lines(
    work: BatchWork, storage: Storage, file: File, *, scan: Scan, plan: Plan, allowed_problems: int
) -> None:
    """Check every line, and plan the results as long as the batch may start."""
    pieces = work.checked(storage.iter_range(file.object_key, 0, file.size_bytes))
    for line in iter_lines(pieces, max_line_bytes=scan.settings.max_line_bytes):
        problem = scan.check(line)
        if scan.num_to_fill or scan.num_problems > allowed_problems:  # in the latter case the batch fails in any case
            scan.planner.pop_closed()
            continue
        if problem is not None:
            plan.add_error(problem)
        plan.write_if_full(scan.planner, model=scan.queue)


def _fail(work: BatchWork, scan: Scan, errors: Sequence[dict[str, Any]]) -> BatchState:
    with work.writing() as (session, batch):
        _name_model(batch, scan)
        batch.errors = list(errors)
        batch.num_unlisted_errors = scan.num_problems - len(scan.listed)
        move_batch(session, batch, BatchState.FAILED)
        _note(session, batch, scan)
        budgets.release(session, batch)
        _count_refused(session, batch, scan)
    return BatchState.FAILED


def _name_model(batch: Batch, scan: Scan) -> None:
    for column, value in scan.named().items():
        setattr(batch, column, value)


def _note(session: Session, batch: Batch, scan: Scan) -> None:
    summary = f"{scan.num_requests:,} lines, {scan.num_problems:,} of them refused"
    if scan.num_copies:
        summary += f", {scan.num_copies:,} the same as earlier ones"
    if num_to_fill := scan.num_filled + scan.num_unfilled:
        summary += f", {num_to_fill:,} to be filled and {scan.num_unfilled:,} of them in vain"
    decisions.note(session, batch.id, Kind.VALIDATED, detail=summary)


def _count_refused(session: Session, batch: Batch, scan: Scan) -> None:
    refused = RefusedInput(lines=scan.num_problems, size_bytes=scan.problem_bytes)
    count_refused(session, batch.tenant_id, refused)


def _activate(session: Session, batch: Batch, scan: Scan) -> None:
    if scan.queue is not None:
        fairshare.activate(session, model=scan.queue, priority=batch.priority, tenant_id=batch.tenant_id)


def _is_held(session: Session, scan: Scan) -> bool:
    assert scan.model is not None
    return served_models.hold_model(session, scan.model, kind_of(scan.endpoint))


def _start(work: BatchWork, scan: Scan, plan: Plan) -> BatchState | None:
    """Set the batch going; with no line to run it goes on to its files at once. None where its model is gone."""
    # A tenant is activated before its chunks: with open ones it keeps its virtual time. In a transaction of its own
    # where there are many: claims wait for that row, and inserting a million chunks takes a while.
    is_apart = plan.has_blocks or len(scan.planner.chunks) > _FEW_CHUNKS
    if is_apart:
        with work.writing() as (session, batch):
            _activate(session, batch, scan)
    with work.writing() as (session, batch):
        if not is_apart:
            _activate(session, batch, scan)
        if scan.model is not None and not _is_held(session, scan):
            return None
        values: dict[str, Any] = {
            **(scan.named() if scan.model else {}),  # a filled input may have no line to run
            "num_requests": scan.num_requests,
            "input_missed_at": None,  # it was read
            "num_failed": scan.num_problems + scan.num_unfilled,
            "needs": int(scan.needs),
        }
        plan.publish(session, batch, scan.planner, model=scan.queue)
        if isinstance(scan.identical, LastingIdenticalLines):
            planned.note_digests(session, batch.id, scan.identical.new)
        if scan.queue is not None:  # some line can run
            queue_marks.mark(session, model=scan.queue, priority=batch.priority, tenant_id=batch.tenant_id)
            move_batch(session, batch, BatchState.IN_PROGRESS, **values)
        else:
            move_batch(session, batch, BatchState.FINALIZING, outcome=BatchState.COMPLETED, **values)
        _note(session, batch, scan)
        _count_refused(session, batch, scan)
        return BatchState(batch.state)
