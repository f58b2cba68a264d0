"""End what is kept no longer: objects of expired and deleted files, and days of results past their retention."""

from __future__ import annotations

from datetime import date, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from jobs.files import due_for_purge, mark_purged
from jobs.partitions import batch_day, drop_partitions_before
from jobs.storage import Storage


def purge_files(session: Session, storage: Storage, *, limit: int = 100) -> int:
    """Delete the objects of up to `limit` expired or deleted files; return how many.

    Inputs of live batches stay until their end. Objects go before the commit: a crash in between repeats a deletion,
    where the reverse would leak the object.
    """
    due = due_for_purge(session, limit=limit)
    for file in due:
        storage.delete(file.object_key)
    mark_purged(session, due)
    return len(due)


def purge_results(session: Session, *, retention: timedelta) -> list[date]:
    """Drop the days of results whose batches were all created longer than `retention` ago and have ended.

    Raises sqlalchemy.exc.OperationalError (ServiceError through `jobs.database.transaction`) when the table is too
    busy: try again later, in a transaction of its own.
    """
    now = session.scalar(select(func.now()))
    assert now is not None
    return drop_partitions_before(session, batch_day(now - retention))
