"""Retrieval stages of a batch: the batches that look up its passages, whether they have ended, and their results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, exists, select
from sqlalchemy.orm import Session, aliased

from jobs import files
from jobs.states import TERMINAL_BATCH_STATES, BatchState, StageKind
from jobs.tables import Batch, BatchStage

_ENDED = [state.value for state in TERMINAL_BATCH_STATES]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalStage:
    """A stage that was created."""

    kind: StageKind
    model: str | None
    """The embedding model; None for the lookup, which needs none."""
    batch_id: str
    state: BatchState
    problem: str | None
    """Why it failed as a whole."""
    num_requests: int
    num_answered: int
    output_key: str | None
    """The object of its results; None where there is none, or it was deleted."""
    errors_key: str | None

    @property
    def is_open(self) -> bool:
        return self.state not in TERMINAL_BATCH_STATES


def stages_of(session: Session, batch_id: str) -> list[RetrievalStage]:
    """Return a batch's stages in their order."""
    joined = select(BatchStage, Batch).join(Batch, Batch.id == BatchStage.stage_batch_id)
    rows = session.execute(joined.where(BatchStage.batch_id == batch_id).order_by(BatchStage.number))
    return [_stage(session, row, stage) for row, stage in rows]


def open_stages(session: Session, batch_id: str) -> Sequence[Batch]:
    """Return the stages' batches that have not ended."""
    query = select(Batch).join(BatchStage, BatchStage.stage_batch_id == Batch.id)
    return session.scalars(query.where(BatchStage.batch_id == batch_id, Batch.state.not_in(_ENDED))).all()


def stages_of_each(session: Session, batch_ids: Collection[str]) -> Mapping[str, Sequence[tuple[StageKind, Batch]]]:
    """Return the stages of several batches, in order, by batch id; in one query."""
    joined = select(BatchStage, Batch).join(Batch, Batch.id == BatchStage.stage_batch_id)
    of_each: defaultdict[str, list[tuple[StageKind, Batch]]] = defaultdict(list)
    for row, stage in session.execute(joined.where(BatchStage.batch_id.in_(batch_ids)).order_by(BatchStage.number)):
        of_each[row.batch_id].append((StageKind(row.kind), stage))
    return of_each


def kept_stages(session: Session, batch_id: str) -> Sequence[Batch]:
    """Return the stages' batches that are not deleted."""
    query = select(Batch).join(BatchStage, BatchStage.stage_batch_id == Batch.id)
    return session.scalars(query.where(BatchStage.batch_id == batch_id, Batch.deleted_at.is_(None))).all()


def is_stage() -> ColumnElement[bool]:
    """Return the condition that a `batch` row is a stage of another batch."""
    return exists().where(BatchStage.stage_batch_id == Batch.id)


def are_over() -> ColumnElement[bool]:
    """Return the condition that no stage of a `batch` row is open."""
    stage = aliased(Batch)
    is_open = (BatchStage.stage_batch_id == stage.id) & stage.state.not_in(_ENDED)
    return ~exists().where(BatchStage.batch_id == Batch.id, is_open)


def _stage(session: Session, row: BatchStage, batch: Batch) -> RetrievalStage:
    return RetrievalStage(
        kind=StageKind(row.kind),
        model=row.model,
        batch_id=batch.id,
        state=BatchState(batch.state),
        problem=(batch.errors or [{}])[0].get("message"),
        num_requests=batch.num_requests,
        num_answered=batch.num_completed + batch.num_failed,
        output_key=_key(session, batch.tenant_id, batch.output_file_id),
        errors_key=_key(session, batch.tenant_id, batch.error_file_id),
    )


def _key(session: Session, tenant_id: str, file_id: str | None) -> str | None:
    file = None if file_id is None else files.find_kept(session, tenant_id, file_id)
    return None if file is None else file.object_key
