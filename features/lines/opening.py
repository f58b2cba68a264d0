"""Choose the reader of a batch's lines: its result files once it has ended, its results so far before."""

from __future__ import annotations

from sqlalchemy.orm import Session, sessionmaker

from features.lines.running import RunningLines
from features.lines.stored import ResultFile, ResultFiles, StoredLines
from jobs.errors import GoneError
from jobs.files import find_kept
from jobs.partitions import batch_day
from jobs.states import TERMINAL_BATCH_STATES
from jobs.storage import Storage
from jobs.tables import Batch


def open_lines(
    session: Session, maker: sessionmaker[Session], storage: Storage, batch: Batch
) -> StoredLines | RunningLines:
    """Return the reader of a batch's lines. Raises GoneError where a file with some of them was deleted."""
    if batch.state not in TERMINAL_BATCH_STATES:
        return RunningLines(maker=maker, batch_id=batch.id, day=batch_day(batch.created_at))
    output, errors = (
        _kept(session, batch, file_id, what)
        for file_id, what in ((batch.output_file_id, "output"), (batch.error_file_id, "error"))
    )
    return StoredLines(storage, ResultFiles(batch_id=batch.id, output=output, errors=errors))


def _kept(session: Session, batch: Batch, file_id: str | None, what: str) -> ResultFile | None:
    if file_id is None:
        return None
    file = find_kept(session, batch.tenant_id, file_id)
    if file is None:
        raise GoneError(
            f"The {what} file {file_id!r} of batch {batch.id!r} was deleted or has expired, and its lines with it.",
            code=f"{what}_file_deleted",
        )
    return ResultFile(object_key=file.object_key, size_bytes=file.size_bytes)
