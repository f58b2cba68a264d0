"""Where an extraction stands: the stages that have begun, what became of their batches, and what comes next."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sqlalchemy.orm import Session

from features.documents import lifecycle, stages
from features.documents.extraction.course.job import ExtractJob
from features.documents.extraction.course.stored_plan import StoredPlan
from features.documents.stages import Stage, stage_of
from features.documents.tables import Extraction, ExtractionStage
from jobs.courses.stages import batches_of
from jobs.courses.standing import CourseStanding, is_stopped
from jobs.errors import NotFoundError
from jobs.graphs.reasons import batch_problem
from jobs.states import BatchState
from jobs.tables import Batch

_ENDED_EARLY = (BatchState.EXPIRED, BatchState.CANCELLED)
"""With an error for every line that was not run: what was answered is put out."""


@dataclass(frozen=True)
class Standing(CourseStanding[ExtractionStage]):
    """An extraction as it was when its worker looked."""

    extraction: Extraction

    @cached_property
    def plan(self) -> StoredPlan:
        return lifecycle.stored_plan(self.extraction)

    @cached_property
    def job(self) -> ExtractJob:
        return self.plan.job()

    @property
    def next_stages(self) -> list[Stage]:
        """Return the stage that comes next, none where all have begun.

        Behind a round of asking again there are two: another round, and what comes where that has nothing to ask.
        """
        all_of = stages.stages_for(self.job.passes)
        if not self.begun:
            return all_of[:1]
        last = stage_of(self.begun[-1])
        behind = all_of[all_of.index(last) + 1 :][:1]
        was_asked = last is Stage.GROUND_AGAIN and self.begun[-1].num_lines > 0
        return [Stage.ASK_AGAIN, *behind] if was_asked else behind

    @property
    def ended_early(self) -> tuple[ExtractionStage, Batch] | None:
        """Return the first stage whose batch expired or was cancelled: after it nothing more is asked of the model."""
        of_stages = ((stage, self.batches[stage.batch_id]) for stage in self.begun if stage.batch_id is not None)
        return next((found for found in of_stages if found[1].state in _ENDED_EARLY), None)

    @property
    def early_end(self) -> str | None:
        """Return what to say of it."""
        return None if self.ended_early is None else problem_of(*self.ended_early)

    @property
    def not_asked(self) -> dict[str, str] | None:
        """Return the error of documents that were read, and not asked for it."""
        if self.ended_early is None or stage_of(self.ended_early[0]) is not Stage.READ:
            return None
        reason = f"{problem_of(*self.ended_early)}, and nothing was asked after it"
        return {"code": f"batch_{self.ended_early[1].state}", "message": reason}


def look(session: Session, extraction_id: str) -> Standing:
    """Return where an extraction stands now. Raises NotFoundError where it was deleted."""
    extraction = session.get(Extraction, extraction_id)
    if extraction is None:
        raise NotFoundError(f"extraction {extraction_id!r} is gone")
    begun = stages.stages_of(session, extraction_id)
    return Standing(
        extraction=extraction,
        begun=begun,
        batches=batches_of(session, begun),
        is_stopped=is_stopped(session, extraction),
        is_over=extraction.ended_at is not None,
    )


def problem_of(stage: ExtractionStage, batch: Batch) -> str:
    """Return what became of the batch of a stage that did not complete."""
    return batch_problem(batch, of=f"stage {stage_of(stage)}")
