"""Indexes that are asked as one document: checks, and the data needed for it."""

from __future__ import annotations

from sqlalchemy.orm import Session

from features.documents.collections.corpora import AskedIndex
from features.retrieval.lifecycle import INDEXES
from features.retrieval.questions import embedder_of
from jobs.errors import InputError


def asked_index(session: Session, tenant_id: str, index_id: str) -> AskedIndex:
    """Return an index that is ready to be asked.

    Raises NotFoundError, ConflictError if it is not completed or its model has changed, or InputError if it has no
    passage.
    """
    index = INDEXES.get(session, tenant_id, index_id)
    embedder_of(session, tenant_id, index_id)
    if not index.num_passages:
        raise InputError(f"Index {index_id!r} has no passage.", param="index_id", code="empty_index")
    return AskedIndex(
        id=index.id, collection_id=index.collection_id, name=index.name or index.id, passage_tokens=index.max_tokens
    )
