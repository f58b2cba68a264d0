"""Collections of documents, and extractions: fields asked of them by a flow of batches."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Identity, Index, Integer, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from features.documents.extraction.scoring.verdicts import Change, Reason, Verdict
from flows.tables import Flow, FlowNode, RequestColumns
from jobs.states import AskedPriority
from jobs.tables.base import Base, created_at, one_of


class Collection(Base):
    """A tenant's documents that are processed together."""

    __tablename__ = "collection"
    __table_args__ = (Index(None, "tenant_id", "created_at", "id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    name: Mapped[str]
    request_metadata: Mapped[dict[str, Any] | None] = mapped_column("metadata")
    created_at: Mapped[datetime] = created_at()
    deleted_at: Mapped[datetime | None]


class CollectionDocument(Base):
    """A document of a collection, a file or an object of a registered store, with the result of reading it."""

    __tablename__ = "collection_document"
    __table_args__ = (
        Index("collection_document_number_idx", "collection_id", "number"),
        Index(
            "collection_document_file_idx",
            "collection_id", "file_id",
            unique=True,
            postgresql_where=text("deleted_at IS NULL AND file_id IS NOT NULL"),
        ),
        Index(
            "collection_document_key_idx",
            "collection_id", "store", "key",
            unique=True,
            postgresql_where=text("deleted_at IS NULL AND file_id IS NULL"),
        ),
        Index("collection_document_object_idx", "object_key", postgresql_where=text("object_key IS NOT NULL")),
        Index("collection_document_purge_idx", "deleted_at", postgresql_where=text("deleted_at IS NOT NULL")),
        CheckConstraint("(file_id IS NULL) = (store IS NOT NULL AND key IS NOT NULL)", name="source"),
    )  # fmt: skip

    id: Mapped[str] = mapped_column(primary_key=True)
    collection_id: Mapped[str] = mapped_column(ForeignKey("collection.id"))
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    number: Mapped[int] = mapped_column(Identity())  # in the order of addition
    name: Mapped[str]
    file_id: Mapped[str | None]  # unreadable once its owner deletes it
    store: Mapped[str | None]
    key: Mapped[str | None]
    version: Mapped[str | None]  # of the object, at the last listing
    size_bytes: Mapped[int]
    created_at: Mapped[datetime] = created_at()
    deleted_at: Mapped[datetime | None]
    # Results of the last extraction that read it:
    sha256: Mapped[str | None]
    object_key: Mapped[str | None]  # of the text and its positions
    num_pages: Mapped[int | None]
    num_characters: Mapped[int | None]
    error: Mapped[dict[str, Any] | None]  # why it could not be read


class Extraction(RequestColumns, Flow):
    """Extraction of fields from all documents of a collection; see `features.documents`."""

    __tablename__ = "extraction"
    __table_args__ = (
        Index(None, "collection_id"),
        CheckConstraint(one_of("priority", AskedPriority), name="priority"),
        {"postgresql_with": {"fillfactor": "70"}},
    )
    __mapper_args__ = {"polymorphic_identity": "extraction"}  # noqa: RUF012 - SQLAlchemy's own protocol

    id: Mapped[str] = mapped_column(ForeignKey("flow.id", ondelete="CASCADE"), primary_key=True)
    model: Mapped[str]
    plan: Mapped[dict[str, Any]]  # in the form of `features.documents.extraction.course.stored_plan`
    again: Mapped[bool]  # whether doubtful values are asked a second time
    parquet: Mapped[bool]  # whether the fields are also written as a table
    output_expires_after_seconds: Mapped[int | None]
    # Its documents when it began, and its plan; null before it begins.
    documents_file_id: Mapped[str | None] = mapped_column(ForeignKey("file.id"))
    plan_file_id: Mapped[str | None] = mapped_column(ForeignKey("file.id"))
    # The final results; while documents are asked again, the provisional records:
    output_file_id: Mapped[str | None] = mapped_column(ForeignKey("file.id"))
    parquet_file_id: Mapped[str | None] = mapped_column(ForeignKey("file.id"))
    num_documents: Mapped[int] = mapped_column(server_default="0")
    num_done: Mapped[int] = mapped_column(server_default="0")
    failed_codes: Mapped[dict[str, Any]] = mapped_column(server_default="{}")  # numbers of failed documents by code
    num_to_review: Mapped[int] = mapped_column(server_default="0")  # number of values
    early_end: Mapped[str | None]  # why the model is asked nothing more; null: it may be
    num_provisional: Mapped[int] = mapped_column(server_default="0")  # groundings in the file of provisional records


class ExtractionNode(FlowNode):
    """A stage of an extraction that has begun."""

    __mapper_args__ = {"polymorphic_identity": "extraction"}  # noqa: RUF012 - SQLAlchemy's own protocol


class ExtractionDocument(Base):
    """A document of an extraction, and the lines that asked about it: see `features.documents.courses.rows`."""

    __tablename__ = "extraction_document"

    extraction_id: Mapped[str] = mapped_column(ForeignKey("extraction.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    document: Mapped[dict[str, Any]]  # a `KeptDocument`
    node: Mapped[int | None] = mapped_column(Integer)  # where it is; null: it is over
    # For each node that it has been at: the node's number, its first line in the node's batch, and how many it has.
    spans: Mapped[list[int]] = mapped_column(ARRAY(Integer), server_default="{}")


class Review(Base):
    """A value of a completed extraction that a person should review; see `features.documents.reviewing.reviews`."""

    __tablename__ = "review"
    __table_args__ = (
        Index(None, "extraction_id", "document_id"),
        Index(
            "review_open_idx",
            "extraction_id", text("urgency DESC"), "id",
            postgresql_where=text("decided_at IS NULL"),
        ),
        CheckConstraint(one_of("reason", Reason), name="reason"),
        CheckConstraint(one_of("verdict", Verdict), name="verdict"),
        CheckConstraint("(verdict IS NULL) = (decided_at IS NULL)", name="decided"),
    )  # fmt: skip

    id: Mapped[str] = mapped_column(primary_key=True)
    extraction_id: Mapped[str] = mapped_column(ForeignKey("extraction.id"))
    tenant_id: Mapped[str]
    document_id: Mapped[str]
    document: Mapped[str]  # its name
    path: Mapped[str]  # of the value, spelled as in the evidence
    place: Mapped[list[Any]] = mapped_column(JSON)  # the path in parts
    reason: Mapped[str]
    urgency: Mapped[float]
    evidence: Mapped[dict[str, Any]] = mapped_column(JSON)  # plain JSON, since documents may contain NUL
    claim: Mapped[str | None]
    claimed_until: Mapped[datetime | None]
    verdict: Mapped[str | None]
    correction: Mapped[dict[str, Any] | None]  # its `value`
    is_right: Mapped[bool | None]  # whether the extracted value is right
    decided_by: Mapped[str | None]  # id of a key
    decided_at: Mapped[datetime | None]


class ItemChangeRow(Base):
    """An item that a person added to a list of a record or dropped; see `features.documents.reviewing.items`."""

    __tablename__ = "item_change"
    __table_args__ = (
        Index(None, "extraction_id", "document_id"),
        CheckConstraint(one_of("change", Change), name="change"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    extraction_id: Mapped[str] = mapped_column(ForeignKey("extraction.id", ondelete="CASCADE"))
    tenant_id: Mapped[str]
    document_id: Mapped[str]
    place: Mapped[list[Any]] = mapped_column(JSON)  # of the item, with its permanent number
    change: Mapped[str]
    value: Mapped[Any] = mapped_column(JSON)  # of an added item
    changed_by: Mapped[str]  # id of a key
    changed_at: Mapped[datetime]


class RecordRanges(Base):
    """Byte ranges of a completed extraction's records in their file; see `features.documents.record_ranges`."""

    __tablename__ = "record_ranges"

    extraction_id: Mapped[str] = mapped_column(ForeignKey("extraction.id", ondelete="CASCADE"), primary_key=True)
    bucket: Mapped[int] = mapped_column(primary_key=True)
    ranges: Mapped[dict[str, Any]]  # first byte and end, by document id
