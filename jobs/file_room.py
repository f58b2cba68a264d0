"""The room that a tenant has for files: how many it keeps and their bytes, against its limits."""

from __future__ import annotations

from sqlalchemy import BindParameter, Select, bindparam, func, literal_column, select
from sqlalchemy.orm import Session

from jobs import hooks
from jobs.accounts.limits import Limits
from jobs.database import advisory_lock
from jobs.errors import TooLargeError
from jobs.files import is_there
from jobs.states import UploadState
from jobs.tables import File, Upload, UploadPart


def hold_room(session: Session, tenant_id: str) -> None:
    """Serialise the creation of a tenant's files until the transaction ends: then `check_room` is exact."""
    advisory_lock(session, f"files {tenant_id}")


def check_room(session: Session, tenant_id: str, limits: Limits, *, size_bytes: int, num_more: int = 1) -> None:
    """Raise TooLargeError where more files, of `size_bytes` together, exceed what the tenant may store."""
    num_files, stored = kept_files(session, tenant_id)
    if num_files + num_more > limits.files:
        sent = "" if num_more == 1 else f", the request has {num_more:,} more,"
        raise TooLargeError(
            f"You keep {num_files:,} files{sent} and {limits.files:,} are allowed. Delete some, or let them expire.",
            param="file",
            code="too_many_files",
        )
    _check_bytes(size_bytes, stored, limits)


def check_stored_bytes(session: Session, tenant_id: str, limits: Limits, *, size_bytes: int) -> None:
    """Raise TooLargeError where `size_bytes` of an already counted file exceed what the tenant may store."""
    _check_bytes(size_bytes, kept_files(session, tenant_id)[1], limits)


def check_more_bytes(session: Session, tenant_id: str, limits: Limits, *, size_bytes: int, of: str) -> None:
    """Raise TooLargeError where `size_bytes` of something other than a file exceed what the tenant may store."""
    _check_bytes(size_bytes, kept_files(session, tenant_id)[1], limits, of=of)


def _check_bytes(size_bytes: int, stored: int, limits: Limits, *, of: str = "The file") -> None:
    if stored + size_bytes > limits.stored_bytes:
        raise TooLargeError(
            f"{of} has {size_bytes:,} bytes, what you keep has {stored:,}, and together {limits.stored_bytes:,} "
            "are allowed. Delete some, or let them expire.",
            param="file",
            code="stored_bytes_exceeded",
        )


def kept_files(session: Session, tenant_id: str) -> tuple[int, int]:
    """Return how many files a tenant stores, including those still uploaded in parts, and their bytes.

    Indexes are not files, but their bytes count.
    """
    num_files, size = session.execute(_KEPT, {"tenant_id": tenant_id}).one()
    return int(num_files), int(size) + hooks.stored_bytes(session, tenant_id)


def _kept() -> Select[int, int]:
    tenant_id: BindParameter[str] = bindparam("tenant_id")
    is_pending = (Upload.tenant_id == tenant_id) & (Upload.state == literal_column(f"'{UploadState.PENDING}'"))
    is_kept = (UploadPart.tenant_id == tenant_id) & UploadPart.deleted_at.is_(None)
    query = select(
        func.count() + select(func.count()).select_from(Upload).where(is_pending).scalar_subquery(),
        func.coalesce(func.sum(File.size_bytes), 0)
        + select(func.coalesce(func.sum(UploadPart.size_bytes), 0)).where(is_kept).scalar_subquery(),
    )
    return query.where(File.tenant_id == tenant_id, is_there())


_KEPT = _kept()
