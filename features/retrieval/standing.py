"""Standing of an index: the stages that have begun, their batches, and what comes next."""

from __future__ import annotations

from sqlalchemy.orm import Session

from features.retrieval import stages
from features.retrieval.stages import STAGES, IndexStage
from features.retrieval.tables import IndexNode, PassageIndex
from flows import standing
from flows.reasons import batch_problem
from jobs.errors import NotFoundError
from jobs.states import BatchState
from jobs.tables import Batch


class Standing(standing.Standing[PassageIndex, IndexNode]):
    """An index as its worker last read it."""

    @property
    def next_stage(self) -> IndexStage | None:
        """Return the next stage to begin, or None if all have begun."""
        all_of = stages.stages_for(self.flow)
        return all_of[len(self.begun)] if len(self.begun) < len(all_of) else None

    def of_stage(self, stage: IndexStage) -> Batch | None:
        """Return the batch of a stage that has begun, or None if there was nothing to do."""
        return self.batch_of(self.begun[STAGES.index(stage)])

    def problem(self, node: IndexNode) -> str | None:
        """Return why a stage, whose batch has ended, cannot be built on."""
        batch = self.batch_of(node)
        if batch is None or batch.state == BatchState.COMPLETED:
            return None
        return f"{batch_problem(batch, of=f'stage {node.name}')}; build the index again"


def look(session: Session, index_id: str) -> Standing:
    """Return the current standing of an index. Raises NotFoundError if its row is gone."""
    index = session.get(PassageIndex, index_id)
    if index is None:
        raise NotFoundError(f"index {index_id!r} is gone")
    return standing.read(session, index, stages.stages_of(session, index_id), Standing)
