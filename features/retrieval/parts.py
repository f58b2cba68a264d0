"""What a search needs to know of an index: a value without SQL, good as long as the index is there."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from features.documents.extraction.retrieval.signature import Signature
from features.retrieval.tables import IndexSegment, PassageIndex
from jobs.errors import ConflictError
from jobs.states import IndexState


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexParts:
    """A completed index; nothing changes it."""

    id: str
    tenant_id: str
    signature: Signature
    """Of all its segments, as it was when it was completed."""
    embedding_model: str | None
    """Which embeds its questions; None: it is searched by words alone."""
    object_keys: tuple[str, ...]
    """Of its segments."""

    @property
    def query_prefix(self) -> str:
        """Return what stands before a question that is embedded."""
        return "" if self.signature.embedding is None else self.signature.embedding.query_prefix


def parts_of(session: Session, index: PassageIndex) -> IndexParts:
    """Return the parts of an index. Raises ConflictError where it is not completed."""
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
