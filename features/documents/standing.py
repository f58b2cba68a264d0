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
        return lifecycle.job_of(self.flow)

    @property
    def next_stages(self) -> list[DocumentStage]:
        """Return the first stage that has not begun, if any: once no batch runs, it has nothing to do."""
        return stages.stages_ahead(self.job.passes, self.begun)[:1]

    @property
    def open_in_order(self) -> list[ExtractionNode]:
        """Return the open nodes, that of the latest stage first: what is nearly done is done first."""
        return sorted(self.open_nodes, key=lambda node: node.number, reverse=True)

    def node(self, number: int) -> ExtractionNode | None:
        """Return the begun node of this number."""
        return next((node for node in self.begun if node.number == number), None)

    @property
    def ended_early(self) -> tuple[ExtractionNode, Batch] | None:
        """Return the first stage whose batch expired or was cancelled; the model is asked nothing after it."""
        of_stages = ((stage, self.batches[stage.batch_id]) for stage in self.begun if stage.batch_id is not None)
        return next((ended for ended in of_stages if ended[1].state in _ENDED_EARLY), None)

    @property
    def early_end(self) -> str | None:
        """Return the reason why the model is asked nothing more."""
        if self.flow.early_end is not None:
            return self.flow.early_end
        return None if self.ended_early is None else problem_of(*self.ended_early)

    @property
    def not_asked(self) -> dict[str, str] | None:
        """Return the error of documents that were read but, because of the early end, not asked."""
        if self.flow.early_end is not None:
            return {"code": "not_asked", "message": self.flow.early_end}
        if self.ended_early is None or stage_of(self.ended_early[0]) not in (DocumentStage.READ, DocumentStage.ASK):
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
