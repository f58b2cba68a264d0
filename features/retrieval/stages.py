"""The stages of an index in order, which of them have begun, and their batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from enum import StrEnum

from sqlalchemy.orm import Session

from features.retrieval.tables import IndexNode, PassageIndex
from flows import nodes
from flows.ends import FlowEnd
from flows.ends import expected_end as flow_end
from flows.nodes import WrittenLines
from jobs.lines.document_bodies import CUT_ENDPOINT, READ_ENDPOINT
from jobs.lines.embedding_bodies import EMBEDDING_ENDPOINT
from jobs.settings import Settings
from jobs.tables import Batch

_OUTPUTS_LAST = 7 * 86_400
"""In seconds; the index copies what it needs of them."""


class IndexStage(StrEnum):
    """A step that all documents finish before the next one begins."""

    READ = "read"  # bytes become text with positions
    CUT = "cut"  # texts become passages, in segments of the index
    EMBED = "embed"  # a model makes a vector of each passage
    EMBED_AGAIN = "embed_again"  # passages of failed requests, one by one: among many passages one may be too long


STAGES = tuple(IndexStage)
"""All stages in order; a stage's position is its number."""
_ENDPOINTS = {IndexStage.READ: READ_ENDPOINT, IndexStage.CUT: CUT_ENDPOINT}


def stages_for(index: PassageIndex) -> Sequence[IndexStage]:
    """Return the stages of an index."""
    return STAGES if index.embedding_model is not None else STAGES[: STAGES.index(IndexStage.EMBED)]


def stages_of(session: Session, index_id: str) -> list[IndexNode]:
    """Return the stages that have begun, in order."""
    return nodes.nodes_of(session, IndexNode, index_id)


def stages_of_each(session: Session, index_ids: Collection[str]) -> dict[str, list[IndexNode]]:
    """Return the stages that have begun of several indexes, by index id, in one query."""
    return nodes.nodes_of_each(session, IndexNode, index_ids)


def expected_end(
    index: PassageIndex, begun: Sequence[IndexNode], batches: Mapping[str, Batch], *, now: datetime
) -> FlowEnd:
    """Return when an index is expected to end; known once its last stage has begun."""
    if index.ended_at is not None:
        return FlowEnd()
    last = IndexStage.CUT if index.embedding_model is None else IndexStage.EMBED
    is_last_begun = any(node.number >= STAGES.index(last) for node in begun)
    return flow_end(begun, batches, is_last_begun=is_last_begun, now=now)


def begin(
    session: Session,
    index: PassageIndex,
    stage: IndexStage,
    lines: WrittenLines,
    *,
    settings: Settings,
) -> None:
    """Record that a stage has begun and create its batch: `flows.nodes.begin`."""
    new_batch = nodes.NodeBatch(
        name=stage.value,
        endpoint=_ENDPOINTS.get(stage, EMBEDDING_ENDPOINT),
        priority=index.priority,
        expires_at=index.expires_at,
        metadata={"index_id": index.id},
        outputs_last_seconds=_OUTPUTS_LAST,
    )
    node = IndexNode(flow_id=index.id, number=STAGES.index(stage), name=stage.value, num_lines=lines.num_lines)
    nodes.begin(session, index, node, lines=lines.file, wanted=new_batch, settings=settings)
