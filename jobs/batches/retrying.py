"""Retry the failed lines of a batch that has ended as the input of another one.

The error file identifies failed lines by ids made from line numbers, which are matched with those of the input: lines
without a custom_id, or with a duplicate one, stay distinct.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import orjson
from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.accounts.limits import check_priority
from jobs.batches import queue_limits
from jobs.batches.submission import CreateBatch, check_request
from jobs.errors import ConflictError, GoneError, NotFoundError
from jobs.files import find_kept
from jobs.lines.filled_lines import UNAVAILABLE
from jobs.lines.output_lines import line_id
from jobs.lines.reading import iter_lines
from jobs.partitions import batch_day
from jobs.settings import MIB, Settings
from jobs.states import (
    TERMINAL_BATCH_STATES,
    AskedPriority,
    BatchState,
    EngineChoice,
    InvalidLines,
    Priority,
    UncoveredLines,
)
from jobs.storage import Storage
from jobs.tables import Batch, Result, Tenant

_MAX_LINE_BYTES = 64 * MIB  # far above any setting: the lines were accepted once
LOOKED_AT = 1000
"""Failed lines checked where a retry is only offered."""
RUN_ERRORS = frozenset(
    {
        *("engine_failure", "insufficient_quota", "batch_expired", "batch_cancelled", "file_not_found"),
        UNAVAILABLE,
    }
)
"""Errors after which a valid line may succeed. A line with any other code was refused for its content, and would fail
the new batch too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySource:
    """Files that hold the failed lines of a batch."""

    batch_id: str
    num_failed: int
    input_key: str
    errors_key: str


def wish(
    batch: Batch,
    *,
    completion_window: str | None = None,
    priority: AskedPriority | None = None,
    idempotency_key: str | None = None,
    trace_context: str | None = None,
    retry_count: int = 0,
) -> CreateBatch:
    """Return the create call of a retry: that of the batch, with these values replaced."""
    return CreateBatch(
        input_file_id="",
        made_from=f"failed lines of {batch.id}",
        retry_of=batch.id,
        endpoint=batch.endpoint,
        completion_window=completion_window or batch.completion_window,
        name=batch.name,
        metadata=batch.request_metadata,
        output_expires_after_seconds=batch.output_expires_after_seconds,
        priority=priority or _asked(batch),
        invalid_lines=InvalidLines(batch.invalid_lines),
        uncovered_lines=UncoveredLines(batch.uncovered_lines),
        engine=EngineChoice(batch.engine_choice),
        is_reproducible=batch.is_reproducible,
        idempotency_key=idempotency_key,
        trace_context=trace_context,
        retry_count=retry_count,
    )


def _asked(batch: Batch) -> AskedPriority:
    """Return the class to request again; a batch that overflowed requests the last class, which everybody may use."""
    return AskedPriority.BULK if batch.priority == Priority.OVERFLOW else AskedPriority(batch.priority)


def begin(session: Session, tenant: Tenant, batch: Batch, request: CreateBatch, settings: Settings) -> RetrySource:
    """Return the files of a retry's lines, before any of them is read.

    Raises the errors that do not depend on the lines: as `source_of`, ForbiddenError for its class, RateLimitError or
    LimitError where no further batch may be open.
    """
    check_request(request)
    source = source_of(session, batch)
    check_priority(tenant, request.priority)
    queue_limits.check_open(session, tenant, settings)
    return source


def check_lines(session: Session, batch: Batch) -> None:
    """Raise ConflictError where none of the first LOOKED_AT failed lines may run unchanged.

    Uses the results in the database, which have the same lines as the error file.
    """
    if batch.results_deleted_at is not None:
        return
    failed = select(Result.line).where(
        Result.batch_day == batch_day(batch.created_at), Result.batch_id == batch.id, Result.is_error
    )
    lines = session.scalars(failed.limit(LOOKED_AT)).all()
    if len(lines) < LOOKED_AT and next(_may_run(lines), None) is None:
        raise _refused(batch.id, batch.num_failed)


def source_of(session: Session, batch: Batch) -> RetrySource:
    """Return the files that hold a batch's failed lines.

    Raises ConflictError where it has not ended or nothing failed, GoneError where a needed file is deleted.
    """
    if BatchState(batch.state) not in TERMINAL_BATCH_STATES:
        raise ConflictError(
            f"Cannot retry a batch with status '{batch.state}'. Wait for its end, or cancel it first.",
            code="batch_not_ended",
        )
    if batch.error_file_id is None:
        raise _nothing(batch)
    errors = find_kept(session, batch.tenant_id, batch.error_file_id)
    input_id = batch.source_file_id or batch.input_file_id  # it is filled again
    content = find_kept(session, batch.tenant_id, input_id)
    for file, file_id, what in ((content, input_id, "input"), (errors, batch.error_file_id, "error")):
        if file is None:
            raise GoneError(
                f"The {what} file {file_id!r} of batch {batch.id!r} was deleted or has expired, so its "
                "failed lines are unknown. Upload them and submit them as a new batch.",
                code=f"{what}_file_deleted",
            )
    assert errors is not None
    assert content is not None
    return RetrySource(
        batch_id=batch.id, num_failed=batch.num_failed, input_key=content.object_key, errors_key=errors.object_key
    )


def failed_lines(storage: Storage, source: RetrySource) -> Iterator[bytes]:
    """Yield the failed lines of the input unchanged and in order, without those that validation refused.

    Both files are streamed side by side: the error file has the order of the input. Raises ConflictError where none is
    left, ServiceError, or GoneError where the store has lost a file.
    """
    num_found = 0
    try:
        failed = _failed_ids(storage, source)
        awaited = next(failed, None)
        lines = iter_lines(storage.iter_chunks(source.input_key), max_line_bytes=_MAX_LINE_BYTES)
        while awaited is not None and (line := next(lines, None)) is not None:
            if line.content is not None and line_id(source.batch_id, line.line_no) == awaited:
                num_found += 1
                yield line.content
                awaited = next(failed, None)
    except NotFoundError as error:
        message = f"The files of batch {source.batch_id!r} are lost: {error.message}. Submit its lines as a new batch."
        raise GoneError(message, code="file_lost") from None
    if awaited is not None:
        raise RuntimeError(
            f"{awaited} of the error file is not in the input of {source.batch_id} after those before it"
        )
    if not num_found:
        raise _refused(source.batch_id, source.num_failed)


def _failed_ids(storage: Storage, source: RetrySource) -> Iterator[str]:
    """Yield the ids of the error file's lines that may run, in the order of lines."""
    lines = iter_lines(storage.iter_chunks(source.errors_key), max_line_bytes=_MAX_LINE_BYTES)
    return _may_run(line.content for line in lines if line.content is not None)


def _may_run(lines: Iterable[bytes]) -> Iterator[str]:
    for content in lines:
        line = orjson.loads(content)
        error = line["error"]
        if line["custom_id"] is not None and (error is None or error["code"] in RUN_ERRORS):
            yield line["id"]


def _refused(batch_id: str, num_failed: int) -> ConflictError:
    return ConflictError(
        f"None of the {num_failed:,} failed lines of batch {batch_id!r} can run unchanged: each was refused for its "
        "content (the error file has the reasons). Correct them and submit them as a new batch.",
        code="nothing_to_retry",
    )


def _nothing(batch: Batch) -> ConflictError:
    if batch.state == BatchState.FAILED:
        why = "failed as a whole, before any line ran: `errors` says why. Correct the file and submit it"
    elif not batch.num_requests:
        why = "has no known lines. Check its input file, and submit one that has lines"
    else:
        why = f"has no failed lines: all {batch.num_completed:,} are completed. Submit its input again to run them all"
    return ConflictError(f"Batch {batch.id!r} {why} as a new batch.", code="nothing_to_retry")
