"""Files of tenants: rows that reference immutable objects in the store. Expired and deleted files are not found."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Interval,
    Select,
    bindparam,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Session

from jobs import deletions
from jobs.database import advisory_lock, try_advisory_lock
from jobs.deletions import Deleted
from jobs.errors import ConflictError, NotFoundError, ServiceError
from jobs.ids import new_id
from jobs.lines.input_estimate import InputEstimate
from jobs.pagination import Page, read_page
from jobs.states import TERMINAL_BATCH_STATES
from jobs.tables import Batch, File, InputSegment, Tenant, Upload, UploadPart

MAX_PAGE = 10_000
MIN_EXPIRY_SECONDS = 3600
MAX_EXPIRY_SECONDS = 2_592_000
NO_NAME = ""
"""The name of a deleted file: its row stays, and its own name may identify a person."""


class Purpose(StrEnum):
    """Purpose of a file, in the API's terms."""

    BATCH = "batch"  # input of a batch
    BATCH_OUTPUT = "batch_output"  # output and error files
    USER_DATA = "user_data"  # stored for the tenant; no batch reads it


OBJECT_KEY = re.compile(r"tenant_[0-9a-f]{32}/object_[0-9a-f]{32}")


def new_object_key(tenant_id: str) -> str:
    """Return a new key in the object store; the content is written first, then `create_file` references it."""
    return f"{tenant_id}/{new_id('object')}"


def is_object_key(name: str) -> bool:
    """Return whether a key has the format of `new_object_key`; a bucket may hold other things too."""
    return OBJECT_KEY.fullmatch(name) is not None


def line_index_key(object_key: str) -> str:
    """Return the key of the line index beside an output or error file: it is deleted with that object."""
    return f"{object_key}.lines"


def keys_of(object_key: str, purpose: str) -> list[str]:
    """Return the keys of a file's object and of what is deleted with it, which may be absent."""
    return [object_key, line_index_key(object_key)] if purpose == Purpose.BATCH_OUTPUT else [object_key]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A file whose content is in the object store, but not referenced by a row yet."""

    object_key: str
    filename: str
    purpose: str
    size_bytes: int
    estimate: InputEstimate | None = None
    """Of batch inputs only."""
    expires_after_seconds: int | None = None
    """None: it does not expire."""


def create_file(session: Session, tenant_id: str, new: NewFile) -> File:
    """Create the row of a stored object. Raises ServiceError where it was swept as a leftover meanwhile."""
    [file] = create_files(session, tenant_id, [new])
    return file


def create_files(session: Session, tenant_id: str, new: Sequence[NewFile]) -> list[File]:
    """Create the rows of stored objects as `create_file` does, with as few statements as for one."""
    claim_objects(session, *(each.object_key for each in new))
    return list(session.scalars(_INSERT, [_values(tenant_id, each) for each in new]))


def _values(tenant_id: str, new: NewFile) -> dict[str, Any]:
    estimate, lasting = new.estimate, new.expires_after_seconds
    assert estimate is not None or new.purpose != Purpose.BATCH, "a batch input needs its estimate"
    return {
        "id": new_id("file"),
        "tenant_id": tenant_id,
        "purpose": new.purpose,
        "filename": new.filename,
        "size_bytes": new.size_bytes,
        "object_key": new.object_key,
        "lasting": None if lasting is None else timedelta(seconds=lasting),
        "num_requests": estimate.num_requests if estimate else None,
        "estimated_input_tokens": estimate.estimated_input_tokens if estimate else None,
        "estimated_output_tokens": estimate.estimated_output_tokens if estimate else None,
    }


def claim_objects(session: Session, *object_keys: str) -> None:
    """Let rows reference objects in this transaction. Raises ServiceError where one was swept meanwhile."""
    advisory_lock(session, *(f"object {key}" for key in object_keys))
    swept = deletions.find(session, Deleted.OBJECT, *object_keys)
    if swept is not None:
        raise ServiceError(f"object {swept.subject_id} was deleted before a file named it: it took too long; try again")


def get_file(session: Session, tenant_id: str, file_id: str) -> File:
    """Return a file of this tenant. Raises NotFoundError, also for a deleted, expired or another tenant's file."""
    file = find_kept(session, tenant_id, file_id)
    if file is None:
        raise _not_found(file_id)
    return file


def find_kept(session: Session, tenant_id: str, file_id: str) -> File | None:
    """Return a file of this tenant, or None where it is deleted, expired or another tenant's."""
    file: File | None = session.scalar(_KEPT, {"file_id": file_id, "tenant_id": tenant_id})
    return file


def share_file(session: Session, tenant_id: str, file_id: str) -> File | None:
    """Return a file locked against deletion until this transaction ends, or None."""
    mine = select(File).where(File.id == file_id, File.tenant_id == tenant_id, is_there())
    return session.scalar(mine.with_for_update(read=True))


def condemn(session: Session, keys: Collection[str]) -> set[str]:
    """Return those of these object keys that no file or part references, and make sure that none ever will.

    Objects of unknown tenants belong to another database, or to a dump that is yet to be restored, and are left out.
    """
    tenant_ids = {key: key.partition("/")[0] for key in keys}
    ours = set(session.scalars(select(Tenant.id).where(Tenant.id.in_(set(tenant_ids.values())))))
    candidates = _unnamed(session, {key for key in keys if tenant_ids[key] in ours})
    free = {key for key in sorted(candidates) if try_advisory_lock(session, f"object {key}")}
    unnamed = _unnamed(session, free)  # one may have been referenced until its lock was free
    known = {key for key in unnamed if deletions.find(session, Deleted.OBJECT, key) is not None}
    new = sorted(unnamed - known)
    deletions.record(session, Deleted.OBJECT, [(key, tenant_ids[key]) for key in new], by=deletions.SWEEP)
    return unnamed


def _unnamed(session: Session, keys: set[str]) -> set[str]:
    referenced = select(File.object_key).where(File.object_key.in_(keys), File.purged_at.is_(None))
    parts = select(UploadPart.object_key).where(UploadPart.object_key.in_(keys))
    segments = select(InputSegment.object_key).where(InputSegment.object_key.in_(keys))
    return keys.difference(*(session.scalars(names) for names in (referenced, parts, segments)))


def list_files(
    session: Session,
    tenant_id: str,
    *,
    after: str | None = None,
    limit: int = MAX_PAGE,
    order: str = "desc",
    purpose: str | None = None,
) -> Page[File]:
    """Return a page of a tenant's files; `order` is asc or desc by creation. Raises InputError for a bad `after`."""
    query = select(File).where(File.tenant_id == tenant_id, is_there())
    if purpose is not None:
        query = query.where(File.purpose == purpose)
    return read_page(
        session, query, table=File, tenant_id=tenant_id, after=after, limit=limit, newest_first=order == "desc"
    )


def delete_file(session: Session, tenant_id: str, file_id: str, *, by: str) -> File:
    """Mark a file as deleted; its object may be deleted after the commit.

    Deleting an output or error file also deletes the batch's results line by line. Raises ConflictError while a batch
    still reads the file, NotFoundError as `get_file` does.
    """
    mine = select(File).where(File.id == file_id, File.tenant_id == tenant_id, is_there())
    file = session.scalar(mine.with_for_update(), execution_options={"populate_existing": True})
    if file is None:
        raise _not_found(file_id)
    batch_id = session.scalar(select(Batch.id).where(Batch.input_file_id == file_id, _is_live()).limit(1))
    if batch_id is not None:
        raise ConflictError(
            f"File {file_id!r} is the input of batch {batch_id!r}, which is still running; "
            "cancel the batch or wait for its end, then delete the file.",
            code="file_in_use",
        )
    mark_deleted(session, [file], by=by)
    return file


def mark_deleted(session: Session, files: Sequence[File], *, by: str) -> None:
    """Delete locked files, with the results of the batches whose outputs they are; their objects are purged later."""
    now = session.scalar(select(func.now()))
    for file in files:
        file.deleted_at, file.filename = now, NO_NAME
    session.flush()
    uploads = update(Upload).where(Upload.file_id.in_([file.id for file in files])).values(filename=NO_NAME)
    session.execute(uploads, execution_options={"synchronize_session": False})
    deletions.record(session, Deleted.FILE, [(file.id, file.tenant_id) for file in files], by=by)
    ids = [file.id for file in files if file.purpose == Purpose.BATCH_OUTPUT]
    delete_results(session, Batch.output_file_id.in_(ids) | Batch.error_file_id.in_(ids), by=by)


def delete_all_of(session: Session, tenant_ids: Select[str], *, by: str, limit: int) -> int:
    """Delete up to `limit` files of these tenants that no live batch reads; return how many."""
    in_use = exists().where(Batch.input_file_id == File.id, _is_live())
    theirs = select(File).where(File.tenant_id.in_(tenant_ids), File.deleted_at.is_(None), ~in_use)
    locked = session.scalars(theirs.order_by(File.id).limit(limit).with_for_update(skip_locked=True)).all()
    return _delete_unread(session, locked, by=by)


def delete_results(session: Session, of: ColumnElement[bool], *, by: str) -> None:
    """Make the lines of these batches unreadable; `jobs.retention` purges them."""
    ended = update(Batch).where(of, Batch.results_deleted_at.is_(None)).values(results_deleted_at=func.now())
    rows = session.execute(
        ended.returning(Batch.id, Batch.tenant_id), execution_options={"synchronize_session": False}
    ).all()
    deletions.record(session, Deleted.RESULTS, [(row.id, row.tenant_id) for row in rows], by=by)


def delete_expired(session: Session, *, limit: int) -> int:
    """Mark up to `limit` expired files as deleted, except inputs of live batches; return how many."""
    in_use = exists().where(Batch.input_file_id == File.id, _is_live())
    over_at = func.least(File.expires_at, File.deleted_at)
    over = select(File).where(over_at <= func.now(), File.purged_at.is_(None), File.deleted_at.is_(None), ~in_use)
    locked = session.scalars(over.order_by(over_at).limit(limit).with_for_update(skip_locked=True)).all()
    return _delete_unread(session, locked, by=deletions.EXPIRY)


def _delete_unread(session: Session, locked: Sequence[File], *, by: str) -> int:
    # A batch committed while the files were selected is seen only by another statement; now that they are locked, no
    # new batch can use them.
    readers = select(Batch.input_file_id).where(Batch.input_file_id.in_([file.id for file in locked]), _is_live())
    in_use = set(session.scalars(readers))
    unread = [file for file in locked if file.id not in in_use]
    mark_deleted(session, unread, by=by)
    return len(unread)


def due_for_purge(session: Session, *, limit: int) -> dict[str, list[str]]:
    """Return deleted files whose objects still exist, as id: keys; those never tried come first.

    No lock is held while the objects are deleted: two concurrent purges do no harm.
    """
    is_due = File.purge_again_at.is_(None) | (File.purge_again_at <= func.now())
    is_over = func.least(File.expires_at, File.deleted_at) <= func.now()  # of every deleted file: the index is by this
    is_deleted = File.deleted_at.is_not(None) & File.purged_at.is_(None)
    due = select(File.id, File.object_key, File.purpose).where(is_over, is_deleted, is_due)
    rows = session.execute(due.order_by(File.purge_again_at.asc().nulls_first(), File.deleted_at).limit(limit))
    return {row.id: keys_of(row.object_key, row.purpose) for row in rows}


def note_purged(session: Session, *, gone: Collection[str], refused: Collection[str], again: timedelta) -> None:
    """Record which files have lost their objects, and when to retry the others."""
    session.execute(update(File).where(File.id.in_(gone)).values(purged_at=func.now()))
    session.execute(update(File).where(File.id.in_(refused)).values(purge_again_at=func.now() + again))


def is_there() -> ColumnElement[bool]:
    """Return the condition for a file that is not deleted and has not expired."""
    return File.deleted_at.is_(None) & or_(File.expires_at.is_(None), File.expires_at > func.now())


def _is_live() -> ColumnElement[bool]:
    return Batch.state.not_in([state.value for state in TERMINAL_BATCH_STATES])


def _not_found(file_id: str) -> NotFoundError:
    return NotFoundError(f"No such File object: {file_id!r}. It may have been deleted or have expired.", param="id")


_KEPT = select(File).where(File.id == bindparam("file_id"), File.tenant_id == bindparam("tenant_id"), is_there())
_EXPIRY = func.now() + bindparam("lasting", type_=Interval)  # null where it does not expire
_INSERT = (
    insert(File)
    .values(expires_at=_EXPIRY)
    .returning(File, sort_by_parameter_order=True)
    .execution_options(render_nulls=True)  # otherwise files with and without an estimate take a statement each
)
