"""Purge expired data: objects of deleted files, results of deleted batches, days past their retention.

Each step is its own transaction, none of them open during a request to the object store. Failed deletions are retried
later, and stop nothing else.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta
from itertools import islice

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs import deletions, files
from jobs.database import transaction
from jobs.deletions import Deleted
from jobs.errors import ServiceError
from jobs.partitions import batch_day, days_to_drop, drop_partition, partition_days
from jobs.retention.backups import are_objects_held
from jobs.states import TERMINAL_BATCH_STATES
from jobs.storage import Storage, StoredObject
from jobs.storage.connection import unlisted_uploads
from jobs.storage.read_documents import UnusedDocuments
from jobs.storage.store_owner import may_sweep
from jobs.tables import Batch, Tenant
from jobs.uploads import records

log = logging.getLogger(__name__)

_AGAIN = timedelta(minutes=10)
"""Interval after which a refused deletion is retried."""
_FILES = 100  # per transaction
_BATCHES = 100  # per transaction
_ROWS = 10_000  # per transaction
_DELETIONS_AT_ONCE = 8
_OURS = re.compile(rf"({files.OBJECT_KEY.pattern})(?:\.lines)?(?:#[0-9]+)?")
"""Our objects, the line indexes beside them, and parts of both; a bucket may hold other things too."""


def purge_files(maker: sessionmaker[Session], storage: Storage) -> int:
    """Delete the objects of all deleted and expired files; return how many.

    Inputs of live batches stay until their end. A failed deletion does not stop the others.
    """
    _repeat(maker, lambda session: files.delete_expired(session, limit=_FILES))
    num_gone = 0
    while True:
        with transaction(maker) as session:
            due = {} if are_objects_held(session) else files.due_for_purge(session, limit=_FILES)
        if not due:
            return num_gone
        gone = _delete_files(storage, due)
        with transaction(maker) as session:
            files.note_purged(session, gone=gone, refused=due.keys() - gone, again=_AGAIN)
        num_gone += len(gone)


def _delete_files(storage: Storage, due: Mapping[str, Sequence[str]]) -> set[str]:
    """Delete the objects of files, as id: keys; return the ids of those that have none left."""
    keys = {f"{file_id} {key}": key for file_id, file_keys in due.items() for key in file_keys}
    gone = delete_objects(storage, keys)
    return {file_id for file_id, file_keys in due.items() if all(f"{file_id} {key}" in gone for key in file_keys)}


def purge_uploads(maker: sessionmaker[Session], storage: Storage) -> int:
    """End expired uploads and delete the objects of parts that are no longer needed; return how many.

    Rows of uploads that ended long ago are deleted.
    """
    _repeat(maker, lambda session: records.expire_overdue(session, limit=_FILES))
    num_gone = 0
    while True:
        with transaction(maker) as session:
            due = {} if are_objects_held(session) else records.parts_due_for_purge(session, limit=_FILES)
        if not due:
            break
        gone = delete_objects(storage, due)
        with transaction(maker) as session:
            records.note_purged(session, gone=gone, refused=due.keys() - gone, again=_AGAIN)
        num_gone += len(gone)
    _repeat(maker, lambda session: records.forget(session, limit=_FILES))
    return num_gone


def sweep_objects(maker: sessionmaker[Session], storage: Storage, *, age: timedelta, unused: timedelta) -> int:
    """Delete unneeded objects of the store, which is listed once; return how many.

    These are our objects, and parts of them, that are older than `age` and not referenced by any row, left by killed
    uploads; an upload still under way then fails, because `files.condemn` has its key. Also read documents `unused` for
    this long, or of a deleted tenant: their files are read again if needed. Nothing is deleted where another database
    sweeps the store.
    """
    if not may_sweep(maker, storage):
        return 0
    if (prefix := unlisted_uploads(storage.url)) is not None:
        log.info(
            "parts of unfinished uploads are not swept storage=%s prefix=%r: the bucket needs a lifecycle rule with "
            "AbortIncompleteMultipartUpload; docs/configuration.md has it",
            storage.url,
            prefix,
        )
    with transaction(maker) as session:
        now = session.scalar(select(func.now()))
        gone = set(session.scalars(select(Tenant.id).where(Tenant.deleted_at.is_not(None))))
    assert now is not None
    documents = UnusedDocuments(limit=now - unused, gone=gone)
    due = (entry for entry in storage.iter_objects() if documents.has(entry) or _is_leftover(entry, now - age))
    num_gone = 0
    while block := [entry.name for entry in islice(due, _FILES)]:
        keys = {name: match[1] for name in block if (match := _OURS.fullmatch(name)) is not None}
        with transaction(maker) as session:
            if are_objects_held(session):
                return num_gone
            condemned = files.condemn(session, set(keys.values()))
        unneeded = {name: name for name, key in keys.items() if key in condemned}
        unneeded |= {name: name for name in block if name not in keys and documents.has_still(storage, name)}
        num_gone += len(delete_objects(storage, unneeded))
    return num_gone


def _is_leftover(entry: StoredObject, limit: datetime) -> bool:
    return entry.modified_at < limit and _OURS.fullmatch(entry.name) is not None


def delete_objects(storage: Storage, keys: dict[str, str]) -> set[str]:
    """Delete objects, each by its key in `keys`; return the names of those that are gone."""
    with ThreadPoolExecutor(_DELETIONS_AT_ONCE, thread_name_prefix="purge") as threads:
        errors = dict(zip(keys, threads.map(lambda key: _delete(storage, key), keys.values()), strict=True))
    for name, error in errors.items():
        if error is not None:
            log.warning("object could not be deleted name=%s object_key=%s error=%s", name, keys[name], error)
    return {name for name, error in errors.items() if error is None}


def _delete(storage: Storage, key: str) -> ServiceError | None:
    try:
        storage.delete(key)
    except ServiceError as error:
        return error
    return None


def drop_days(maker: sessionmaker[Session], *, retention: timedelta) -> list[date]:
    """Drop the days of results whose batches have all ended and passed their retention.

    Raises ServiceError where readers hold one for too long: try again soon.
    """
    with transaction(maker) as session:
        due = days_to_drop(session, _first_kept_day(session, retention))
    return [day for day in due if _drop_day(maker, day)]


def _drop_day(maker: sessionmaker[Session], day: date) -> bool:
    with transaction(maker) as session:
        is_dropped = drop_partition(session, day)
        if is_dropped:
            deletions.record(session, Deleted.RESULT_DAY, [(str(day), None)], by=deletions.RETENTION)
    return is_dropped


def purge_results(maker: sessionmaker[Session], *, retention: timedelta) -> int:
    """Delete the rows of deleted results, and of those past their tenant's retention; return of how many batches."""
    _repeat(maker, lambda session: _delete_overdue(session, retention=retention))
    num_purged = 0
    while True:
        with transaction(maker) as session:
            batch = session.scalar(select(Batch).where(*_IS_DUE).order_by(Batch.results_deleted_at).limit(1))
        if batch is None:
            return num_purged
        num_purged += _purge_rows(maker, {"day": batch_day(batch.created_at), "batch_id": batch.id, "limit": _ROWS})


def _purge_rows(maker: sessionmaker[Session], values: dict[str, object]) -> bool:
    """Delete the rows of a batch; False where some are left: another transaction deleted those waited for."""
    _repeat(maker, lambda session: len(session.execute(_DELETE_ROWS, values).all()))
    with transaction(maker) as session:
        return session.execute(_NOTE_PURGED, values).first() is not None


def _repeat(maker: sessionmaker[Session], work: Callable[[Session], int]) -> None:
    """Do a bounded piece of work, each time in its own transaction, until nothing is left."""
    is_left = True
    while is_left:
        with transaction(maker) as session:
            is_left = work(session) > 0


def _delete_overdue(session: Session, *, retention: timedelta) -> int:
    """Delete results past their tenant's retention; where a whole day goes, that is not needed."""
    retention_of_tenant = func.coalesce(func.make_interval(0, 0, 0, Tenant.retention_days), retention)
    days = partition_days(session)
    if not days:
        return 0
    end_of_day = func.date_trunc("day", Batch.created_at, "UTC") + timedelta(days=1)
    is_overdue = (
        Batch.results_deleted_at.is_(None)
        & (Batch.created_at >= days[0])
        & (end_of_day + retention_of_tenant <= func.now())
    )
    # Implied, and needed for the index: no batch younger than the shortest retention is overdue.
    shortest = select(func.least(func.make_interval(0, 0, 0, func.min(Tenant.retention_days)), retention))
    is_old = Batch.created_at <= func.now() - shortest.scalar_subquery()
    has_ended = Batch.state.in_([state.value for state in TERMINAL_BATCH_STATES])
    query = (
        select(Batch.id).join(Tenant, Tenant.id == Batch.tenant_id).where(is_overdue, is_old, has_ended).limit(_BATCHES)
    )
    overdue = session.scalars(query).all()
    files.delete_results(session, Batch.id.in_(overdue), by=deletions.RETENTION)
    return len(overdue)


def _first_kept_day(session: Session, retention: timedelta) -> date:
    now = session.scalar(select(func.now()))
    assert now is not None
    return batch_day(now - retention)


_IS_DUE = (Batch.results_purged_at.is_(None), Batch.results_deleted_at.is_not(None))

# A checkpoint of an ended batch is useless too; there are few, and usually none. An array and no join, as in
# `jobs.batches.planned`.
_DELETE_ROWS = text("""
    WITH forgotten AS (DELETE FROM checkpoint WHERE batch_id = :batch_id)
    DELETE FROM result WHERE batch_day = :day AND batch_id = :batch_id AND line_no = ANY(ARRAY(
        SELECT line_no FROM result WHERE batch_day = :day AND batch_id = :batch_id LIMIT :limit
    )) RETURNING 1
""")

_NOTE_PURGED = text("""
    UPDATE batch SET results_purged_at = now() WHERE id = :batch_id
        AND NOT EXISTS (SELECT FROM result WHERE batch_day = :day AND batch_id = :batch_id)
    RETURNING 1
""")
