"""Indexes of passages of collections, and passages for the prompts of batches: both by flows of batches."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, Text, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from flows.tables import Flow, FlowNode, RequestColumns
from jobs.states import AskedPriority
from jobs.tables.base import Base, one_of


class PassageIndex(RequestColumns, Flow):
    """Makes the passages of a collection's documents searchable; see `features.retrieval`."""

    __tablename__ = "passage_index"
    __table_args__ = (
        Index(None, "collection_id"),
        Index("passage_index_purge_idx", "deleted_at", postgresql_where=text("deleted_at IS NOT NULL")),
        CheckConstraint(one_of("priority", AskedPriority), name="priority"),
        {"postgresql_with": {"fillfactor": "70"}},
    )
    __mapper_args__ = {"polymorphic_identity": "index"}  # noqa: RUF012 - SQLAlchemy's own protocol

    id: Mapped[str] = mapped_column(ForeignKey("flow.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str | None]
    # Settings:
    max_tokens: Mapped[int] = mapped_column(Integer)  # of a passage
    overlap_tokens: Mapped[int] = mapped_column(Integer)
    language: Mapped[str]
    embedding_model: Mapped[str | None]  # null: passages are found by their words only
    embedding: Mapped[dict[str, Any] | None]  # signature of the model's vectors, with the prefixes
    deleted_at: Mapped[datetime | None]  # invisible from then on; its data is purged
    # Results:
    documents_key: Mapped[str | None]  # object with the documents when it began; null before
    signature: Mapped[dict[str, Any] | None]  # of all its segments
    num_documents: Mapped[int] = mapped_column(server_default="0")
    num_indexed: Mapped[int] = mapped_column(server_default="0")
    failed_codes: Mapped[dict[str, Any]] = mapped_column(server_default="{}")  # numbers of failed documents by code
    failures: Mapped[list[dict[str, Any]]] = mapped_column(server_default="[]")  # the first of them
    num_passages: Mapped[int] = mapped_column(server_default="0")
    num_without_vector: Mapped[int] = mapped_column(server_default="0")  # of these, if there is a model
    size_bytes: Mapped[int] = mapped_column(server_default="0")  # of its objects
    # The model whose tokens `max_tokens` counts, and its tokenizer at that time; null: two bytes are a token.
    tokenizer_model: Mapped[str | None]
    tokenizer_sha256: Mapped[str | None]


class IndexNode(FlowNode):
    """A stage of an index that has begun."""

    __mapper_args__ = {"polymorphic_identity": "index"}  # noqa: RUF012 - SQLAlchemy's own protocol


class IndexSegment(Base):
    """A part of an index, inserted before its objects are written: objects that no row names are swept."""

    __tablename__ = "index_segment"
    __table_args__ = (Index(None, "object_key"),)

    index_id: Mapped[str] = mapped_column(ForeignKey("passage_index.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    object_key: Mapped[str]  # words, places and texts; vectors have their own object: `features.retrieval.objects`
    num_documents: Mapped[int] = mapped_column(Integer)
    num_passages: Mapped[int | None] = mapped_column(Integer)  # null: not made yet, or failed
    size_bytes: Mapped[int] = mapped_column(server_default="0")  # of all its objects


class PassageFill(Flow):
    """Puts passages of indexes into the prompts of the batch that it is for; see `features.retrieval.fills`."""

    __tablename__ = "passage_fill"
    __mapper_args__ = {"polymorphic_identity": "fill"}  # noqa: RUF012 - SQLAlchemy's own protocol

    id: Mapped[str] = mapped_column(ForeignKey("flow.id", ondelete="CASCADE"), primary_key=True)
    models: Mapped[list[str]] = mapped_column(
        ARRAY(Text), server_default="{}"
    )  # that embed queries: one per first node


class FillNode(FlowNode):
    """A lookup that has begun."""

    __mapper_args__ = {"polymorphic_identity": "fill"}  # noqa: RUF012 - SQLAlchemy's own protocol
