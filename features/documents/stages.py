"""The stages of an extraction in order, which of them have begun, and their batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy.orm import Session

from features.documents.extraction.course.job import Passes
from features.documents.tables import Extraction, ExtractionNode
from flows import nodes
from flows.ends import FlowEnd
from flows.ends import expected_end as flow_end
from flows.serving import serving_batches
from flows.tables import FlowNode
from jobs.files import MAX_EXPIRY_SECONDS, NewFile
from jobs.lines.bodies import CHAT_ENDPOINT
from jobs.lines.document_bodies import GROUND_ENDPOINT, READ_ENDPOINT
from jobs.settings import Settings
from jobs.tables import Batch


class DocumentStage(StrEnum):
    """A step that each document of an extraction takes by itself."""

    READ = "read"  # bytes become text with positions
    ASK = "ask"  # the model is asked for every group of fields
    GROUND = "ground"  # answers are located in the text; doubtful values are listed
    ASK_AGAIN = "ask_again"  # the model is asked for doubtful values; with GROUND_AGAIN one round of possibly several
    GROUND_AGAIN = "ground_again"
    ASK_COVERED = "ask_covered"  # the model is asked with the found values covered
    GROUND_COVERED = "ground_covered"


STAGES = tuple(DocumentStage)
"""All stages in order; an extraction has the stages of its passes."""
_ROUND = (DocumentStage.ASK_AGAIN, DocumentStage.GROUND_AGAIN)
_BEHIND_ROUNDS = 1_000_000
"""Added to the numbers of nodes that come after all rounds, of which there are far fewer."""
ASKING = (DocumentStage.ASK, DocumentStage.ASK_AGAIN, DocumentStage.ASK_COVERED)
"""Stages that ask the model."""
OPTIONAL = (
    *_ROUND,
    DocumentStage.ASK_COVERED,
    DocumentStage.GROUND_COVERED,
)
"""Stages that only improve records that already exist."""
GROUNDING = (DocumentStage.GROUND, DocumentStage.GROUND_AGAIN, DocumentStage.GROUND_COVERED)
_ENDPOINTS = {DocumentStage.READ: READ_ENDPOINT, **dict.fromkeys(GROUNDING, GROUND_ENDPOINT)}
_MORE_TIME = dict.fromkeys(GROUNDING, timedelta(hours=1))
"""Answers are already paid for, so grounding gets this much time even after the window."""


def stages_for(passes: Passes) -> list[DocumentStage]:
    """Return the stages of an extraction with these passes, in order."""
    again = (DocumentStage.ASK_AGAIN, DocumentStage.GROUND_AGAIN) if passes.again else ()
    covered = (DocumentStage.ASK_COVERED, DocumentStage.GROUND_COVERED) if passes.cover else ()
    return [DocumentStage.READ, DocumentStage.ASK, DocumentStage.GROUND, *again, *covered]


def stages_ahead(passes: Passes, begun: Sequence[FlowNode]) -> list[DocumentStage]:
    """Return the stages that have not begun, in order, without further rounds."""
    names = {node.name for node in begun}
    return [stage for stage in stages_for(passes) if stage not in names]


def may_ask_again(begun: Sequence[FlowNode]) -> bool:
    """Return whether a further round of asking again may begin."""
    rounds = [node for node in begun if node.name in _ROUND and node.num_lines]
    return bool(rounds) and rounds[-1].done_at is None


def node_number(stage: DocumentStage, round_no: int = 1) -> int:
    """Return the number of a node; `round_no` counts from 1 for the stages of a round."""
    if stage in _ROUND:
        return STAGES.index(stage) + len(_ROUND) * (round_no - 1)
    return STAGES.index(stage) + (_BEHIND_ROUNDS if STAGES.index(stage) > STAGES.index(_ROUND[-1]) else 0)


def stage_of(begun: FlowNode) -> DocumentStage:
    """Return the stage of this row."""
    return DocumentStage(begun.name)


def stages_of(session: Session, extraction_id: str) -> list[ExtractionNode]:
    """Return the stages that have begun, in order."""
    return nodes.nodes_of(session, ExtractionNode, extraction_id)


def stages_of_each(session: Session, extraction_ids: Collection[str]) -> dict[str, list[ExtractionNode]]:
    """Return the stages that have begun of several extractions, by extraction id, in one query."""
    return nodes.nodes_of_each(session, ExtractionNode, extraction_ids)


def all_batches_of_each(
    session: Session, stages: Mapping[str, Sequence[ExtractionNode]]
) -> dict[str, dict[str, Batch]]:
    """Return the batches of several extractions, by extraction id, including batches that retrieved their passages.

    Takes two queries.
    """
    own = nodes.batches_of(session, [stage for of_one in stages.values() for stage in of_one])
    serving = serving_batches(session, own)
    return {
        extraction_id: {
            batch.id: batch
            for stage in of_one
            if stage.batch_id in own
            for batch in (own[stage.batch_id], *serving.get(stage.batch_id, ()))
        }
        for extraction_id, of_one in stages.items()
    }


def expected_end(
    extraction: Extraction, begun: Sequence[ExtractionNode], batches: Mapping[str, Batch], *, now: datetime
) -> FlowEnd:
    """Return when an extraction is expected to end; known once documents are grounded."""
    if extraction.ended_at is not None:
        return FlowEnd()
    of_read = next((node for node in begun if stage_of(node) is DocumentStage.READ), None)
    return flow_end(
        begun,
        batches,
        is_last_begun=any(stage_of(node) is DocumentStage.GROUND for node in begun),
        share_begun=1.0 if of_read is None else of_read.num_lines / extraction.num_documents,
        now=now,
    )


def begin(
    session: Session,
    extraction: Extraction,
    stage: DocumentStage,
    lines: NewFile | None,
    *,
    number: int,
    num_lines: int,
    settings: Settings,
    is_growing: bool = False,
    is_followed: bool = True,
) -> None:
    """Record that a stage has begun and create its batch: `flows.nodes.begin`.

    `is_growing`: lines will be added; `is_followed`: each result is acted on as it comes.
    """
    more_time = _MORE_TIME.get(stage, timedelta())
    new_batch = nodes.NodeBatch(
        name=stage.value,
        endpoint=_ENDPOINTS.get(stage, CHAT_ENDPOINT),
        priority=extraction.priority,
        expires_at=extraction.expires_at + (more_time if is_growing else timedelta()),
        metadata={"extraction_id": extraction.id},
        outputs_last_seconds=MAX_EXPIRY_SECONDS,
        least_minutes=max(1, int(more_time.total_seconds() // 60)),
        is_growing=is_growing,
    )
    node = ExtractionNode(
        flow_id=extraction.id,
        number=number,
        name=stage.value,
        num_lines=num_lines,
        num_seen=0 if is_followed else None,
    )
    nodes.begin(session, extraction, node, lines=lines, wanted=new_batch, settings=settings)
