"""Batches that grow: lines are added while earlier ones run, each time as an object of their own.

Only the service adds lines. Whoever does holds a claim, under which the transaction that adds them also records what
they were made from: killed before it, a successor makes them again, and the object of the first try is swept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs import files, served_models
from jobs.accounts import budgets
from jobs.accounts.limits import limits_of
from jobs.batches import lifecycle, planned, queue_limits
from jobs.batches.scan import PlannedChunk, Scan
from jobs.batches.validation import scan_of
from jobs.chunks import fairshare, queue_marks
from jobs.chunks.recording import LineResult, copy_errors
from jobs.errors import ConflictError, InputError
from jobs.files import NewFile
from jobs.lines.endpoints import LineKind, kind_of
from jobs.lines.identical import LastingIdenticalLines
from jobs.lines.reading import RawLine
from jobs.settings import Settings
from jobs.states import BatchState, Priority
from jobs.tables import Batch, File, InputSegment, Tenant


class NotGrowingError(ConflictError):
    """The batch takes no lines any more: it has ended, or is about to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLines:
    """Lines that were checked against a running batch and are not yet in it."""

    batch_id: str
    first_line: int
    """The number of the first of them in the batch."""
    num_lines: int
    chunks: Sequence[PlannedChunk]
    errors: Sequence[LineResult]
    """Of the invalid lines."""
    digests: Mapping[bytes, int] = field(repr=False)
    """Those that later lines may be copies of, and their line numbers."""


def plan(session: Session, batch: Batch, lines: Sequence[bytes], *, settings: Settings) -> NewLines:
    """Check lines for a batch that has started, and plan their chunks; only reads rows.

    Raises InputError where a batch may not have so many lines.
    """
    num_lines, allowed = batch.num_requests + len(lines), settings.max_batch_lines
    if num_lines > allowed:
        raise InputError(f"batch {batch.id} would have {num_lines:,} lines and {allowed:,} are allowed")
    identical = LastingIdenticalLines()
    identical.look_up(lines, lambda digests: _known(session, batch.id, digests))
    scan = scan_of(session, batch, settings, identical=identical)
    errors = _scan(scan, batch, lines)
    return NewLines(
        batch_id=batch.id,
        first_line=batch.num_requests,
        num_lines=len(lines),
        chunks=scan.planner.finish(),
        errors=errors,
        digests=identical.new,
    )


def _scan(scan: Scan, batch: Batch, lines: Sequence[bytes]) -> list[LineResult]:
    """Plan the chunks of valid lines; return the results of the others."""
    errors, start = list[LineResult](), 0
    for line_no, content in enumerate(lines, start=batch.num_requests):
        end = start + len(content)
        shown = content if len(content) <= scan.settings.max_line_bytes else None
        problem = scan.check(RawLine(line_no=line_no, byte_start=start, byte_end=end, content=shown))
        if problem is not None:
            errors.append(planned.error_of(batch.id, problem))
        start = end + 1
    return errors


def add(session: Session, new: NewLines, stored: NewFile, settings: Settings) -> None:
    """Add lines, stored in the object of `stored`, to their batch: they are ready to run.

    Raises NotGrowingError, and what creating a batch of these lines raises for want of room.
    """
    batch = lifecycle.lock_batch(session, new.batch_id)
    if batch is None or batch.state != BatchState.IN_PROGRESS or not batch.is_growing:
        raise NotGrowingError(f"batch {new.batch_id} takes no lines any more")
    if batch.num_requests != new.first_line:
        raise NotGrowingError(f"batch {batch.id} has {batch.num_requests} lines, and line {new.first_line} is to come")
    _reserve(session, batch, stored, settings)
    files.claim_objects(session, stored.object_key)
    segment = InputSegment(
        batch_id=batch.id, first_line=new.first_line, object_key=stored.object_key, size_bytes=stored.size_bytes
    )
    session.add(segment)
    planned.note_digests(session, batch.id, new.digests)
    copy_errors(session, batch, new.errors, base=batch.num_completed + batch.num_failed)
    batch.num_requests += new.num_lines
    batch.num_failed += len(new.errors)
    for chunk in new.chunks:
        batch.needs |= chunk.needs
    session.flush()
    if new.chunks:
        _make_ready(session, batch, new.chunks, segment_key=stored.object_key)


def _reserve(session: Session, batch: Batch, new: NewFile, settings: Settings) -> None:
    """Reserve the tokens of added lines. Raises OverBudgetError, LimitError, TooLargeError."""
    file = session.get_one(File, batch.input_file_id)
    estimate = new.estimate
    assert estimate is not None, "it was estimated as it was written"
    file.num_requests = (file.num_requests or 0) + estimate.num_requests
    file.estimated_input_tokens = (file.estimated_input_tokens or 0) + estimate.estimated_input_tokens
    file.estimated_output_tokens = (file.estimated_output_tokens or 0) + estimate.estimated_output_tokens
    if kind_of(batch.endpoint) is LineKind.PREPARE:
        return
    tokens = estimate.estimated_input_tokens + estimate.estimated_output_tokens
    tenant = session.get_one(Tenant, batch.tenant_id)
    if batch.priority != Priority.OVERFLOW:
        budgets.reserve(session, batch.tenant_id, tokens, key_id=batch.api_key_id)
        batch.reserved_tokens += tokens
    queue_limits.check_tokens(session, batch.tenant_id, limits_of(tenant, settings), tokens=tokens)


def _make_ready(session: Session, batch: Batch, chunks: Sequence[PlannedChunk], *, segment_key: str) -> None:
    assert batch.model is not None, "it has started"
    if not served_models.hold_model(session, batch.model, kind_of(batch.endpoint)):
        raise InputError(f"the model {batch.model!r} was removed, or now answers other lines", code="model_not_found")
    queue = {"model": batch.model, "priority": batch.priority, "tenant_id": batch.tenant_id}
    fairshare.activate(session, **queue)
    planned.copy_ready(session, batch, chunks, segment_key=segment_key)
    queue_marks.mark(session, **queue)


def _known(session: Session, batch_id: str, digests: Sequence[bytes]) -> dict[bytes, int]:
    rows = session.execute(_KNOWN, {"batch_id": batch_id, "digests": list(digests)})
    return {bytes(digest): line_no for digest, line_no in rows}


_KNOWN = text("""
    SELECT digest, line_no FROM input_digest WHERE batch_id = :batch_id AND digest = ANY(CAST(:digests AS bytea[]))
""")
