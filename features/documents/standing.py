"""Standing of an extraction: the stages that have begun, their batches, and what comes next."""

from __future__ import annotations

from functools import cached_property

from sqlalchemy.orm import Session

from features.documents import lifecycle, stages
from features.documents.extraction.course.job import ExtractJob
from features.documents.extraction.course.stored_plan import StoredPlan
from features.documents.stages import DocumentStage, stage_of
from features.documents.tables import Extraction, ExtractionNode
from flows import standing
from flows.reasons import batch_problem
from flows.tables import FlowNode
from jobs.errors import NotFoundError
from jobs.states import BatchState
from jobs.tables import Batch

_ENDED_EARLY = (BatchState.EXPIRED, BatchState.CANCELLED)
"""Such a batch has an error for every line that was not run; finished answers are used."""


class Standing(standing.Standing[Extraction, ExtractionNode]):
    """An extraction as its worker last read it."""

    @cached_property
    def plan(self) -> StoredPlan:
        return lifecycle.stored_plan(self.flow)

    @cached_property
    def job(self) -> ExtractJob:
        return self.plan.job()

    @property
    def next_stages(self) -> list[DocumentStage]:
        """Return the candidates for the next stage, in order; empty if all stages have begun.

        After a round of asking again there are two: another round, and the stage to begin if that has nothing to ask.
        """
        passes = self.job.passes
        behind = stages.stages_ahead(passes, self.begun)[:1]
        is_round_over = bool(self.begun) and stage_of(self.begun[-1]) is DocumentStage.GROUND_AGAIN
        may_repeat = is_round_over and stages.may_ask_again(passes, self.begun)
        return [DocumentStage.ASK_AGAIN, *behind] if may_repeat else behind

    @property
    def ended_early(self) -> tuple[ExtractionNode, Batch] | None:
        """Return the first stage whose batch expired or was cancelled; the model is asked nothing after it."""
        of_stages = ((stage, self.batches[stage.batch_id]) for stage in self.begun if stage.batch_id is not None)
        return next((ended for ended in of_stages if ended[1].state in _ENDED_EARLY), None)

    @property
    def early_end(self) -> str | None:
        """Return the reason for the early end."""
        return None if self.ended_early is None else problem_of(*self.ended_early)

    @property
    def not_asked(self) -> dict[str, str] | None:
        """Return the error of documents that were read but, because of the early end, not asked."""
        if self.ended_early is None or stage_of(self.ended_early[0]) is not DocumentStage.READ:
            return None
        reason = f"{problem_of(*self.ended_early)}, and nothing was asked after it"
        return {"code": f"batch_{self.ended_early[1].state}", "message": reason}


def look(session: Session, extraction_id: str) -> Standing:
    """Return the current standing of an extraction. Raises NotFoundError if it was deleted."""
    extraction = session.get(Extraction, extraction_id)
    if extraction is None:
        raise NotFoundError(f"extraction {extraction_id!r} is gone")
    return standing.read(session, extraction, stages.stages_of(session, extraction_id), Standing)


def problem_of(stage: FlowNode, batch: Batch) -> str:
    """Return the problem of a stage's batch that did not complete."""
    return batch_problem(batch, of=f"stage {stage_of(stage)}")
