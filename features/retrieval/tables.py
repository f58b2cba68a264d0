"""Indexes of collections: what their passages are found by, built as a course of batches."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from jobs.states import OPEN_INDEX_STATES, AskedPriority, IndexState
from jobs.tables.base import Base, one_of
from jobs.tables.courses import CourseRow, StageColumns


class PassageIndex(CourseRow):
    """What the passages of a collection's documents are found by; see `features.retrieval`."""

    __tablename__ = "passage_index"
    __table_args__ = (
        UniqueConstraint("tenant_id", "idempotency_key"),
        Index(None, "tenant_id", "created_at", "id"),
        Index(None, "collection_id"),
        Index("passage_index_open_idx", "tenant_id", postgresql_where=text(one_of("state", OPEN_INDEX_STATES))),
        Index("passage_index_purge_idx", "deleted_at", postgresql_where=text("deleted_at IS NOT NULL")),
        CheckConstraint(one_of("state", IndexState), name="state"),
        CheckConstraint(one_of("priority", AskedPriority), name="priority"),
        {"postgresql_with": {"fillfactor": "70"}},
    )

    name: Mapped[str | None]
    # How it is made:
    max_tokens: Mapped[int] = mapped_column(Integer)  # of a passage
    overlap_tokens: Mapped[int] = mapped_column(Integer)
    language: Mapped[str]
    embedding_model: Mapped[str | None]  # null: passages are found by their words alone
    embedding: Mapped[dict[str, Any] | None]  # what that model said of its vectors, and the prefixes: a signature
    deleted_at: Mapped[datetime | None]  # nobody sees it from then on; what it has is purged
    # What came of it:
    documents_key: Mapped[str | None]  # the object with its documents as they were when it began; null: it has not
    signature: Mapped[dict[str, Any] | None]  # of all its segments
    num_documents: Mapped[int] = mapped_column(server_default="0")
    num_indexed: Mapped[int] = mapped_column(server_default="0")
    failed_codes: Mapped[dict[str, Any]] = mapped_column(server_default="{}")  # how many documents failed, by code
    failures: Mapped[list[dict[str, Any]]] = mapped_column(server_default="[]")  # the first of them
    num_passages: Mapped[int] = mapped_column(server_default="0")
    num_without_vector: Mapped[int] = mapped_column(server_default="0")  # of these, where there is a model
    size_bytes: Mapped[int] = mapped_column(server_default="0")  # of its objects
    # Whose tokens `max_tokens` counts, and the tokenizer that this model had then; null: two bytes are a token.
    tokenizer_model: Mapped[str | None]
    tokenizer_sha256: Mapped[str | None]


class PassageIndexStage(StageColumns, Base):
    """A stage of an index that has begun; each column is written once, by the transaction that did it."""

    __tablename__ = "passage_index_stage"
    __table_args__ = (Index(None, "batch_id", postgresql_where=text("batch_id IS NOT NULL")),)

    passage_index_id: Mapped[str] = mapped_column(ForeignKey("passage_index.id"), primary_key=True)


class IndexSegment(Base):
    """A part of an index, noted before its objects are written: what no row names is swept."""

    __tablename__ = "index_segment"
    __table_args__ = (Index(None, "object_key"),)

    index_id: Mapped[str] = mapped_column(ForeignKey("passage_index.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    object_key: Mapped[str]  # its words, places and texts; its vectors lie beside it: `features.retrieval.objects`
    num_documents: Mapped[int] = mapped_column(Integer)
    num_passages: Mapped[int | None] = mapped_column(Integer)  # null: it is not made yet, or could not be
    size_bytes: Mapped[int] = mapped_column(server_default="0")  # of all its objects
