"""Finished lines of a batch for its owner, page by page, during and after its run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs import deletions
from jobs.batches.page_ends import end_of_page
from jobs.deletions import Deleted
from jobs.errors import GoneError
from jobs.partitions import batch_day, has_partition
from jobs.settings import MIB
from jobs.tables import Batch, Deletion

MAX_PAGE_BYTES = 4 * MIB
"""A page of results ends after the line that exceeds this: lines may have megabytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsPage:
    """Finished lines, in the order in which they finished."""

    content: bytes
    """NDJSON."""
    after: int
    """The cursor of the next page."""
    has_more: bool
    """Whether more lines are available now."""


def read_finished_lines(session: Session, batch: Batch, *, after: int = 0, limit: int = 1000) -> ResultsPage:
    """Return results in the order in which they finished, starting after number `after`.

    The cursor counts results, not lines: they are numbered 1, 2, 3 … under the batch's lock, so all results before a
    visible number are committed, and no line is skipped however late it finishes. Raises GoneError where they were
    deleted, or their retention has ended before the last line was read.
    """
    day = batch_day(batch.created_at)
    values = {"day": day, "batch_id": batch.id}
    last, has_more = end_of_page(session, _SIZES, values, after=after, limit=limit, max_bytes=MAX_PAGE_BYTES)
    lines: list[bytes] = []
    for result_no, line in session.execute(_LINES, {**values, "after": after, "last": last}):
        lines.append(bytes(line) + b"\n")
        after = result_no
    _check_kept(session, batch, day=day, after=after)
    return ResultsPage(content=b"".join(lines), after=after, has_more=has_more)


def _check_kept(session: Session, batch: Batch, *, day: date, after: int) -> None:
    """Raise GoneError where the lines were deleted, or their retention has ended before the last one was read.

    Called after the read: rows that were purged meanwhile must not look like the end.
    """
    deleted = session.scalar(_IS_DELETED, {"batch_id": batch.id})
    if deleted:
        entry = deletions.find(session, Deleted.RESULTS, batch.id)
        if entry is None or entry.deleted_by != deletions.RETENTION:
            raise GoneError(_deleted(batch, entry), code="results_deleted")
    if after < batch.num_completed + batch.num_failed and (deleted or not has_partition(session, day)):
        raise GoneError(_expired(batch), code="results_expired")


def _deleted(batch: Batch, entry: Deletion | None) -> str:
    what = f"The results of batch {batch.id!r} were deleted"
    if entry is None:  # expired, and not swept yet
        return f"{what} when one of its files expired."
    with_file = "when one of its files expired" if entry.deleted_by == deletions.EXPIRY else f"by {entry.deleted_by!r}"
    return f"{what} {with_file}, at {entry.deleted_at:%Y-%m-%d %H:%M:%S} UTC."


def _expired(batch: Batch) -> str:
    files = {"output": batch.output_file_id, "error": batch.error_file_id}
    files_text = " and ".join(f"its {kind} file {file_id!r}" for kind, file_id in files.items() if file_id)
    return f"The results of batch {batch.id!r} are no longer kept line by line. Download {files_text} instead."


_IS_DELETED = text("""
    SELECT results_deleted_at IS NOT NULL OR EXISTS (
        SELECT FROM file WHERE file.id IN (batch.output_file_id, batch.error_file_id)
            AND LEAST(file.expires_at, file.deleted_at) <= now()
    ) FROM batch WHERE batch.id = :batch_id
""")

_SIZES = text("""
    SELECT result_no, octet_length(line) + 1 FROM result
    WHERE batch_day = :day AND batch_id = :batch_id AND result_no > :after
        -- What a validation writes counts once its batch starts.
        AND result_no <= (SELECT num_completed + num_failed FROM batch WHERE id = :batch_id)
    ORDER BY result_no LIMIT :limit
""")

_LINES = text("""
    SELECT result_no, line FROM result
    WHERE batch_day = :day AND batch_id = :batch_id AND result_no > :after AND result_no <= :last
    ORDER BY result_no
""")
