"""Rows of uploads and their parts: create, add, cancel, expire and delete.

A part's object is stored before its row is written; its bytes count with the tenant's files until the upload has ended.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.orm import Session

from jobs import deletions, file_room, files
from jobs.accounts.limits import Limits
from jobs.claims.statements import ClaimSql, condition
from jobs.deletions import Deleted
from jobs.errors import InputError, NotFoundError, TooLargeError
from jobs.ids import new_id
from jobs.settings import MIB
from jobs.states import UploadState, require_move
from jobs.tables import Upload, UploadPart
from jobs.uploads.part_counts import PartCount

MAX_PART_BYTES = 64 * MIB
MAX_PARTS = 1000
"""8 GiB in parts of 8.6 MB; their ids fit into one request."""
EXPIRY = timedelta(hours=1)
"""After the newest part: a file of 8 GB may take longer than an hour, and must not expire while it arrives."""
KEPT = timedelta(days=30)
"""How long an ended upload can be looked up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewUpload:
    """Declaration of a file to upload."""

    filename: str
    purpose: str
    mime_type: str
    size_bytes: int
    expires_after_seconds: int | None
    """Of the resulting file; None: it does not expire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPart:
    """A part whose content is in the object store, but not referenced by a row yet."""

    object_key: str
    size_bytes: int
    md5: str
    count: PartCount


def create(session: Session, tenant_id: str, new: NewUpload, limits: Limits) -> Upload:
    """Begin an upload. Raises TooLargeError where the tenant has no room for such a file now."""
    file_room.hold_room(session, tenant_id)
    file_room.check_room(session, tenant_id, limits, size_bytes=new.size_bytes)
    upload = Upload(
        id=new_id("upload"),
        tenant_id=tenant_id,
        purpose=new.purpose,
        filename=new.filename,
        mime_type=new.mime_type,
        size_bytes=new.size_bytes,
        file_expires_after_seconds=new.expires_after_seconds,
        expires_at=func.now() + EXPIRY,
    )
    session.add(upload)
    session.flush()
    session.refresh(upload)
    return upload


def get(session: Session, tenant_id: str, upload_id: str) -> Upload:
    """Return an upload of this tenant; an overdue one as expired. Raises NotFoundError."""
    upload = lock(session, tenant_id, upload_id)
    if session.scalar(select(_is_over()).where(Upload.id == upload.id)):
        end(session, upload, UploadState.EXPIRED, by=deletions.EXPIRY)
    return upload


def require_pending(session: Session, tenant_id: str, upload_id: str) -> Upload:
    """Return a pending upload, locked. Raises InputError where it has ended, NotFoundError."""
    upload = get(session, tenant_id, upload_id)
    if upload.state != UploadState.PENDING:
        raise InputError(
            f"Upload {upload_id!r} is {upload.state}; only a pending one takes parts or is completed. Create another.",
            param="upload_id",
            code="upload_not_pending",
        )
    return upload


def parts_of(session: Session, upload_id: str) -> list[UploadPart]:
    """Return the stored parts, oldest first."""
    mine = select(UploadPart).where(UploadPart.upload_id == upload_id, UploadPart.deleted_at.is_(None))
    return list(session.scalars(mine.order_by(UploadPart.created_at, UploadPart.id)))


def check_part(session: Session, tenant_id: str, upload_id: str, limits: Limits, *, size_bytes: int) -> Upload:
    """Return the upload, locked, if it accepts one more part of this size. Raises InputError, TooLargeError."""
    file_room.hold_room(session, tenant_id)
    upload = require_pending(session, tenant_id, upload_id)
    num_parts = session.scalar(select(func.count()).select_from(UploadPart).where(UploadPart.upload_id == upload_id))
    if num_parts is not None and num_parts >= MAX_PARTS:
        raise TooLargeError(
            f"Upload {upload_id!r} has {num_parts:,} parts and {MAX_PARTS:,} are allowed. Send larger parts, of up to "
            f"{MAX_PART_BYTES:,} bytes.",
            code="too_many_parts",
        )
    file_room.check_stored_bytes(session, tenant_id, limits, size_bytes=size_bytes)
    return upload


def add_part(session: Session, tenant_id: str, upload_id: str, new: NewPart, limits: Limits) -> UploadPart:
    """Add a stored object as a part. Raises as `check_part`, and ServiceError where it was swept as a leftover."""
    upload = check_part(session, tenant_id, upload_id, limits, size_bytes=new.size_bytes)
    files.claim_objects(session, new.object_key)
    part = UploadPart(
        id=new_id("part"),
        upload_id=upload.id,
        tenant_id=tenant_id,
        size_bytes=new.size_bytes,
        object_key=new.object_key,
        md5=new.md5,
        head_bytes=new.count.head_bytes,
        tail_bytes=new.count.tail_bytes,
        num_requests=new.count.whole.num_requests,
        estimated_input_tokens=new.count.whole.estimated_input_tokens,
        estimated_output_tokens=new.count.whole.estimated_output_tokens,
    )
    session.add(part)
    session.execute(update(Upload).where(Upload.id == upload.id).values(expires_at=func.now() + EXPIRY))
    session.flush()
    session.refresh(part)
    return part


def cancel(session: Session, tenant_id: str, upload_id: str, *, by: str) -> Upload:
    """End an upload without a file; idempotent. Raises InputError, NotFoundError."""
    upload = get(session, tenant_id, upload_id)
    if upload.state == UploadState.CANCELLED:
        return upload
    if upload.state != UploadState.PENDING:
        raise InputError(
            f"Upload {upload_id!r} is {upload.state} and cannot be cancelled. Delete its file, if it has one.",
            param="upload_id",
            code="upload_not_pending",
        )
    end(session, upload, UploadState.CANCELLED, by=by)
    return upload


def expire_overdue(session: Session, *, limit: int) -> int:
    """Expire up to `limit` uploads whose last part is too old; return how many."""
    over = select(Upload).where(_is_over()).order_by(Upload.expires_at).limit(limit)
    locked = session.scalars(over.with_for_update(skip_locked=True), execution_options={"populate_existing": True})
    uploads = locked.all()
    for upload in uploads:
        end(session, upload, UploadState.EXPIRED, by=deletions.EXPIRY)
    return len(uploads)


def lock(session: Session, tenant_id: str, upload_id: str) -> Upload:
    """Return an upload, freshly read and locked until the transaction ends. Raises NotFoundError."""
    mine = select(Upload).where(Upload.id == upload_id, Upload.tenant_id == tenant_id)
    upload = session.scalar(mine.with_for_update(), execution_options={"populate_existing": True})
    if upload is None:
        raise NotFoundError(f"No such Upload object: {upload_id!r}.", param="upload_id")
    return upload


def end(session: Session, upload: Upload, state: UploadState, *, by: str | None) -> None:
    """Move a locked upload to its end, and free its parts; `by` is who deletes it, None for no deletion."""
    require_move(UploadState(upload.state), state)
    upload.state = state
    upload.ended_at = session.scalar(select(func.now()))
    session.flush()
    mine = (UploadPart.upload_id == upload.id) & UploadPart.deleted_at.is_(None)
    session.execute(update(UploadPart).where(mine).values(deleted_at=func.now()))
    if by is not None:
        deletions.record(session, Deleted.UPLOAD, [(upload.id, upload.tenant_id)], by=by)


def parts_due_for_purge(session: Session, *, limit: int) -> dict[str, str]:
    """Return unneeded parts, as id: object key; those never tried come first. Takes no lock."""
    is_due = UploadPart.purge_again_at.is_(None) | (UploadPart.purge_again_at <= func.now())
    due = select(UploadPart.id, UploadPart.object_key).where(UploadPart.deleted_at.is_not(None), is_due)
    rows = session.execute(due.order_by(UploadPart.purge_again_at.asc().nulls_first()).limit(limit))
    return {row.id: row.object_key for row in rows}


def note_purged(session: Session, *, gone: Collection[str], refused: Collection[str], again: timedelta) -> None:
    """Delete the rows of parts whose objects are gone, and record when to retry the others."""
    session.execute(delete(UploadPart).where(UploadPart.id.in_(gone)))
    session.execute(update(UploadPart).where(UploadPart.id.in_(refused)).values(purge_again_at=func.now() + again))


def forget(session: Session, *, limit: int) -> int:
    """Delete up to `limit` uploads that ended long ago and have no part left; return how many."""
    has_part = select(UploadPart.id).where(UploadPart.upload_id == Upload.id).exists()
    old = select(Upload.id).where(Upload.ended_at <= func.now() - KEPT, ~has_part).limit(limit)
    ids = session.scalars(old.with_for_update(skip_locked=True)).all()
    session.execute(delete(Upload).where(Upload.id.in_(ids)))
    return len(ids)


def _is_over() -> ColumnElement[bool]:
    """An upload that is being completed does not expire."""
    is_free = condition(ClaimSql("upload").is_free)
    return (Upload.state == UploadState.PENDING.value) & (Upload.expires_at <= func.now()) & is_free
