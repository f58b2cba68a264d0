"""Files in the object store, and uploads in parts."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, Text, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from jobs.states import UploadState
from jobs.tables.base import Base, created_at, one_of


class File(Base):
    """One immutable object. The columns of the estimate are filled while an input file streams in."""

    __tablename__ = "file"
    __table_args__ = (
        Index(None, "tenant_id", "created_at", "id"),
        # For the sums of a tenant's stored files: an index-only scan.
        Index(
            "file_kept_idx",
            "tenant_id",
            postgresql_include=["size_bytes", "expires_at"],
            postgresql_where=text("deleted_at IS NULL"),
        ),
        # LEAST ignores nulls: the time from which the object is not needed, null where it stays.
        Index("file_purge_idx", text("LEAST(expires_at, deleted_at)"), postgresql_where=text("purged_at IS NULL")),
        Index(None, "object_key"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    purpose: Mapped[str]
    filename: Mapped[str]  # "" once it is deleted
    size_bytes: Mapped[int]
    object_key: Mapped[str]
    created_at: Mapped[datetime] = created_at()
    expires_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    num_requests: Mapped[int | None]
    estimated_input_tokens: Mapped[int | None]
    estimated_output_tokens: Mapped[int | None]
    purged_at: Mapped[datetime | None]  # its object is deleted from the store
    purge_again_at: Mapped[datetime | None]  # the store refused to delete its object: when to retry


class Upload(Base):
    """A file uploaded in parts: see `jobs.uploads`."""

    __tablename__ = "upload"
    __table_args__ = (
        Index("upload_pending_idx", "tenant_id", postgresql_where=text("state = 'pending'")),
        Index("upload_expiry_idx", "expires_at", postgresql_where=text("state = 'pending'")),
        Index("upload_ended_idx", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
        Index(None, "file_id"),
        CheckConstraint(one_of("state", UploadState), name="state"),
        {"postgresql_with": {"fillfactor": "70"}},
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    state: Mapped[str] = mapped_column(server_default=UploadState.PENDING.value)
    purpose: Mapped[str]
    filename: Mapped[str]
    mime_type: Mapped[str]
    size_bytes: Mapped[int]  # of the whole file, as declared by its owner
    file_expires_after_seconds: Mapped[int | None]
    created_at: Mapped[datetime] = created_at()
    expires_at: Mapped[datetime]  # extended by each part
    ended_at: Mapped[datetime | None]
    part_ids: Mapped[list[str] | None] = mapped_column(ARRAY(Text))  # the parts of the completed file, in order
    file_id: Mapped[str | None] = mapped_column(ForeignKey("file.id"))
    # Claim of the process that completes the upload.
    claim_fence: Mapped[int] = mapped_column(server_default="0")  # only grows
    claimed_until: Mapped[datetime | None]
    claimed_by: Mapped[str | None]  # owner of the claim


class UploadPart(Base):
    """An object that is a part of an upload; its row is deleted with the object, or when a file takes that over."""

    __tablename__ = "upload_part"
    __table_args__ = (
        Index(None, "upload_id"),
        Index(
            "upload_part_kept_idx",
            "tenant_id",
            postgresql_include=["size_bytes"],
            postgresql_where=text("deleted_at IS NULL"),
        ),
        Index("upload_part_purge_idx", "deleted_at", postgresql_where=text("deleted_at IS NOT NULL")),
        Index(None, "object_key"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    upload_id: Mapped[str] = mapped_column(ForeignKey("upload.id"))
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    size_bytes: Mapped[int]
    object_key: Mapped[str]
    md5: Mapped[str]  # of its bytes, in hexadecimal digits
    created_at: Mapped[datetime] = created_at()
    deleted_at: Mapped[datetime | None]  # no longer needed
    purge_again_at: Mapped[datetime | None]  # the store refused to delete its object: when to retry
    # For batch inputs: the counts of `jobs.uploads.part_counts`, without the lines at both ends.
    head_bytes: Mapped[int]
    tail_bytes: Mapped[int]
    num_requests: Mapped[int]
    estimated_input_tokens: Mapped[int]
    estimated_output_tokens: Mapped[int]
