"""Files of tenants: rows that name immutable objects in the store. Expired and deleted ones are not found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from sqlalchemy import ColumnElement, exists, func, or_, select
from sqlalchemy.orm import Session

from jobs.accounts.limits import Limits
from jobs.database import advisory_lock
from jobs.errors import ConflictError, NotFoundError, TooLargeError
from jobs.ids import new_id
from jobs.lines.input_estimate import InputEstimate
from jobs.pagination import Page, read_page
from jobs.states import TERMINAL_BATCH_STATES
from jobs.tables import Batch, File

MAX_PAGE = 10_000
MIN_EXPIRY_SECONDS = 3600
MAX_EXPIRY_SECONDS = 2_592_000


class Purpose(StrEnum):
    """What a file is for, as the wire names it."""

    BATCH = "batch"  # input of a batch
    BATCH_OUTPUT = "batch_output"  # output and error files
    USER_DATA = "user_data"  # kept for the tenant; no batch reads it


def new_object_key(tenant_id: str) -> str:
    """Return a fresh key in the object store; the content goes there first, then `create_file` names it."""
    return f"{tenant_id}/{new_id('object')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A file whose content is in the object store, and that no row names yet."""

    object_key: str
    filename: str
    purpose: str
    size_bytes: int
    estimate: InputEstimate | None = None
    """Of a batch input, and of no other file."""
    expires_after_seconds: int | None = None
    """None: it does not expire."""


def create_file(session: Session, tenant_id: str, new: NewFile) -> File:
    """Name an object that is in the store already."""
    estimate = new.estimate
    assert estimate is not None or new.purpose != Purpose.BATCH, "a batch input needs its estimate"
    now = session.scalar(select(func.now()))
    assert now is not None
    lasting = new.expires_after_seconds
    file = File(
        id=new_id("file"),
        tenant_id=tenant_id,
        purpose=new.purpose,
        filename=new.filename,
        size_bytes=new.size_bytes,
        object_key=new.object_key,
        created_at=now,
        expires_at=None if lasting is None else now + timedelta(seconds=lasting),
        num_requests=estimate.num_requests if estimate else None,
        estimated_input_tokens=estimate.estimated_input_tokens if estimate else None,
        estimated_output_tokens=estimate.estimated_output_tokens if estimate else None,
    )
    session.add(file)
    session.flush()
    return file


def hold_room(session: Session, tenant_id: str) -> None:
    """Let the files of a tenant come one after the other until the transaction ends: then `check_room` is exact."""
    advisory_lock(session, f"files {tenant_id}")


def check_room(session: Session, tenant_id: str, limits: Limits, *, size_bytes: int) -> None:
    """Raise TooLargeError where one more file, of `size_bytes`, is more than a tenant may keep."""
    query = select(func.count(), func.coalesce(func.sum(File.size_bytes), 0))
    num_files, stored = session.execute(query.where(File.tenant_id == tenant_id, _is_there())).one()
    if num_files >= limits.files:
        raise TooLargeError(
            f"You keep {num_files:,} files and {limits.files:,} are allowed. Delete some, or let them expire.",
            param="file",
            code="too_many_files",
        )
    if stored + size_bytes > limits.stored_bytes:
        raise TooLargeError(
            f"The file has {size_bytes:,} bytes, your files have {int(stored):,}, and together {limits.stored_bytes:,} "
            "are allowed. Delete some, or let them expire.",
            param="file",
            code="stored_bytes_exceeded",
        )


def get_file(session: Session, tenant_id: str, file_id: str) -> File:
    """Return a file of this tenant. Raises NotFoundError, also for one that is deleted, expired or another's."""
    file = session.scalar(select(File).where(File.id == file_id, File.tenant_id == tenant_id, _is_there()))
    if file is None:
        raise _not_found(file_id)
    return file


def share_file(session: Session, tenant_id: str, file_id: str) -> File | None:
    """Return a file that cannot be deleted until this transaction ends, or None."""
    mine = select(File).where(File.id == file_id, File.tenant_id == tenant_id, _is_there())
    return session.scalar(mine.with_for_update(read=True))


def list_files(
    session: Session,
    tenant_id: str,
    *,
    after: str | None = None,
    limit: int = MAX_PAGE,
    order: str = "desc",
    purpose: str | None = None,
) -> Page[File]:
    """Return a page of a tenant's files; `order` is asc or desc by creation. Raises InputError on a wrong `after`."""
    query = select(File).where(File.tenant_id == tenant_id, _is_there())
    if purpose is not None:
        query = query.where(File.purpose == purpose)
    return read_page(
        session, query, table=File, tenant_id=tenant_id, after=after, limit=limit, newest_first=order == "desc"
    )


def delete_file(session: Session, tenant_id: str, file_id: str) -> File:
    """Mark a file as deleted; its object may be deleted once this is committed.

    Raises ConflictError while a batch still reads it, NotFoundError as `get_file` does.
    """
    mine = select(File).where(File.id == file_id, File.tenant_id == tenant_id, _is_there())
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
    file.deleted_at = session.scalar(select(func.now()))
    session.flush()
    return file


def due_for_purge(session: Session, *, limit: int = 100) -> Sequence[File]:
    """Return files whose objects are still there and no longer needed, locked, oldest first.

    Those are deleted files, and expired ones that no live batch reads. The caller deletes their objects and calls
    `mark_purged`; a crash in between repeats the deletion: harmless.
    """
    over_at = func.least(File.expires_at, File.deleted_at)
    in_use = exists().where(Batch.input_file_id == File.id, _is_live())
    over = select(File).where(over_at <= func.now(), File.purged_at.is_(None), ~in_use)
    locked = session.scalars(over.order_by(over_at).limit(limit).with_for_update(skip_locked=True)).all()
    # A batch that was committed while that statement ran is seen only by another one; after this lock there is no new
    # batch of these files.
    readers = select(Batch.input_file_id).where(Batch.input_file_id.in_([file.id for file in locked]), _is_live())
    still_in_use = set(session.scalars(readers))
    return [file for file in locked if file.id not in still_in_use]


def mark_purged(session: Session, files: Sequence[File]) -> None:
    """Note that the objects of these files are gone; an expired file counts as deleted from now on."""
    now = session.scalar(select(func.now()))
    for file in files:
        file.deleted_at = file.deleted_at or now
        file.purged_at = now
    session.flush()


def _is_there() -> ColumnElement[bool]:
    return File.deleted_at.is_(None) & or_(File.expires_at.is_(None), File.expires_at > func.now())


def _is_live() -> ColumnElement[bool]:
    return Batch.state.not_in([state.value for state in TERMINAL_BATCH_STATES])


def _not_found(file_id: str) -> NotFoundError:
    return NotFoundError(f"No such File object: {file_id!r}. It may have been deleted or have expired.", param="id")
