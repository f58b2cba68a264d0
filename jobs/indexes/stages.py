"""The stages of an index, in their order: which are begun, and the batch that each one is."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from jobs.batches import made_inputs
from jobs.batches.submission import CreateBatch
from jobs.files import NewFile
from jobs.graphs.windows import window_left
from jobs.lines.document_bodies import CUT_ENDPOINT, READ_ENDPOINT
from jobs.lines.embedding_bodies import EMBEDDING_ENDPOINT
from jobs.settings import Settings
from jobs.states import AskedPriority, InvalidLines
from jobs.tables import Batch, PassageIndex, PassageIndexStage, Tenant

_OUTPUTS_LAST = 7 * 86_400
"""Seconds: what the index has of them, it has as its own."""


class Stage(StrEnum):
    """What is done to all documents before the next stage begins."""

    READ = "read"  # bytes become a text with places
    CUT = "cut"  # texts become passages, and these segments of the index
    EMBED = "embed"  # a model makes a vector of each passage
    EMBED_AGAIN = "embed_again"  # those of requests that failed one by one: of many passages one may be too long


STAGES = tuple(Stage)
"""In their order: a stage's place here is its number."""
_ENDPOINTS = {Stage.READ: READ_ENDPOINT, Stage.CUT: CUT_ENDPOINT}


def stages_for(index: PassageIndex) -> Sequence[Stage]:
    """Return the stages that an index goes through."""
    return STAGES if index.embedding_model is not None else STAGES[: STAGES.index(Stage.EMBED)]


def stages_of(session: Session, index_id: str) -> list[PassageIndexStage]:
    """Return the stages that are begun, in order."""
    mine = PassageIndexStage.passage_index_id == index_id
    return list(session.scalars(select(PassageIndexStage).where(mine).order_by(PassageIndexStage.number)))


def batches_of(session: Session, stages: Sequence[PassageIndexStage]) -> dict[str, Batch]:
    """Return the batches of stages by their ids."""
    ids = [stage.batch_id for stage in stages if stage.batch_id is not None]
    return {batch.id: batch for batch in session.scalars(select(Batch).where(Batch.id.in_(ids)))}


def begin(
    session: Session, index: PassageIndex, stage: Stage, lines: NewFile | None, *, num_lines: int, settings: Settings
) -> None:
    """Note that a stage has begun and create its batch, in the transaction of the claim; without lines there is none.

    Raises what creating a batch raises.
    """
    batch = None if lines is None else _submit(session, index, stage, lines, settings)
    session.add(
        PassageIndexStage(
            passage_index_id=index.id,
            number=STAGES.index(stage),
            batch_id=None if batch is None else batch.id,
            num_lines=num_lines,
        )
    )
    index.num_tries = 0
    index.reason = None
    session.flush()


def finish(session: Session, stage: PassageIndexStage) -> None:
    """Note that the batch of a stage has ended."""
    stage.done_at = session.scalar(select(func.now()))
    session.flush()


def _submit(session: Session, index: PassageIndex, stage: Stage, lines: NewFile, settings: Settings) -> Batch:
    tenant = session.get_one(Tenant, index.tenant_id)
    wanted = CreateBatch(
        input_file_id="",
        made_from=f"{stage} of {index.id}",
        endpoint=_ENDPOINTS.get(stage, EMBEDDING_ENDPOINT),
        completion_window=window_left(session, index.expires_at),
        metadata={"index_id": index.id, "stage": stage.value},
        output_expires_after_seconds=_OUTPUTS_LAST,
        priority=AskedPriority(index.priority),
        invalid_lines=InvalidLines.SKIP,
        is_ours=True,
    )
    return made_inputs.submit(session, tenant, wanted, lines, settings, key_id=index.api_key_id).batch
