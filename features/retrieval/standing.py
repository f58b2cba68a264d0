"""Standing of an index: the stages that have begun, their batches, and what comes next."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from features.retrieval import stages
from features.retrieval.stages import STAGES, IndexStage
from features.retrieval.tables import PassageIndex, PassageIndexStage
from jobs.courses.stages import batches_of
from jobs.courses.standing import CourseStanding, is_stopped
from jobs.errors import NotFoundError
from jobs.graphs.reasons import batch_problem
from jobs.states import BatchState
from jobs.tables import Batch


@dataclass(frozen=True)
class Standing(CourseStanding[PassageIndexStage]):
    """An index as its worker last read it."""

    index: PassageIndex

    @property
    def next_stage(self) -> IndexStage | None:
        """Return the next stage to begin, or None if all have begun."""
        all_of = stages.stages_for(self.index)
        return all_of[len(self.begun)] if len(self.begun) < len(all_of) else None

    def batch_of(self, stage: IndexStage) -> Batch | None:
        """Return the batch of a stage that has begun, or None if there was nothing to do."""
        batch_id = self.begun[STAGES.index(stage)].batch_id
        return None if batch_id is None else self.batches[batch_id]

    def problem(self) -> str | None:
        """Return why the open stage, whose batch has ended, cannot be built on."""
        stage, batch = self.open_stage, self.open_batch
        if stage is None or batch is None or batch.state == BatchState.COMPLETED:
            return None
        return f"{batch_problem(batch, of=f'stage {STAGES[stage.number]}')}; build the index again"


def look(session: Session, index_id: str) -> Standing:
    """Return the current standing of an index. Raises NotFoundError if its row is gone."""
    index = session.get(PassageIndex, index_id)
    if index is None:
        raise NotFoundError(f"index {index_id!r} is gone")
    begun = stages.stages_of(session, index_id)
    return Standing(
        index=index,
        begun=begun,
        batches=batches_of(session, begun),
        is_stopped=is_stopped(session, index),
        is_over=index.ended_at is not None,
    )
