"""Indexes that are asked as one document: whether one can be, and what is to be known of it."""

from __future__ import annotations

from sqlalchemy.orm import Session

from features.documents.collections.corpora import AskedIndex
from features.retrieval.lifecycle import find_index
from features.retrieval.questions import embedder_of
from jobs.errors import InputError


def asked_index(session: Session, tenant_id: str, index_id: str) -> AskedIndex:
    """Return an index that questions can be asked of now.

    Raises NotFoundError, ConflictError where it is not completed or its model is another by now, or InputError where it
    has no passage.
    """
    index = find_index(session, tenant_id, index_id)
    embedder_of(session, tenant_id, index_id)
    if not index.num_passages:
        raise InputError(f"Index {index_id!r} has no passage.", param="index_id", code="empty_index")
    return AskedIndex(
        id=index.id, collection_id=index.collection_id, name=index.name or index.id, passage_tokens=index.max_tokens
    )
