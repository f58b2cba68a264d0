"""The data of an index that a search needs: a value without SQL, valid as long as the index exists."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from features.documents.extraction.retrieval.signature import Signature
from features.retrieval.states import IndexState
from features.retrieval.tables import IndexSegment, PassageIndex
from jobs.errors import ConflictError


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexParts:
    """A completed, immutable index."""

    id: str
    tenant_id: str
    signature: Signature
    """Of all its segments, at completion."""
    embedding_model: str | None
    """The model that embeds its questions; None: it is searched by words only."""
    object_keys: tuple[str, ...]
    """Of its segments."""

    @property
    def query_prefix(self) -> str:
        """Return the prefix of questions to embed."""
        return "" if self.signature.embedding is None else self.signature.embedding.query_prefix


def parts_of(session: Session, index: PassageIndex) -> IndexParts:
    """Return the parts of an index. Raises ConflictError if it is not completed."""
    if index.state != IndexState.COMPLETED or index.signature is None:
        what = "cannot be searched" if index.state == IndexState.FAILED else "cannot be searched yet"
        why = f": {index.reason}" if index.reason else ""
        raise ConflictError(f"Index {index.id!r} is {index.state} and {what}{why}.", code="index_not_ready")
    mine = (IndexSegment.index_id == index.id) & (IndexSegment.num_passages > 0)
    keys = session.scalars(select(IndexSegment.object_key).where(mine).order_by(IndexSegment.number))
    return IndexParts(
        id=index.id,
        tenant_id=index.tenant_id,
        signature=Signature.from_json(index.signature),
        embedding_model=index.embedding_model,
        object_keys=tuple(keys),
    )
