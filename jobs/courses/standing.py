"""Where a course stands: the stages that have begun, and what became of their batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy.orm import Session

from jobs.states import CANCELLING
from jobs.tables import Batch, Tenant
from jobs.tables.courses import CourseRow, StageColumns

StageRow_co = TypeVar("StageRow_co", bound=StageColumns, covariant=True)


@dataclass(frozen=True)
class CourseStanding(Generic[StageRow_co]):
    """A course as it was when its worker looked."""

    begun: Sequence[StageRow_co]
    batches: Mapping[str, Batch]
    """Of the stages, by their ids."""
    is_stopped: bool
    """It is to end: it is being cancelled, or its tenant is gone."""
    is_over: bool

    @property
    def open_stage(self) -> StageRow_co | None:
        """Return the stage whose end is not noted."""
        return self.begun[-1] if self.begun and self.begun[-1].done_at is None else None

    @property
    def open_batch(self) -> Batch | None:
        """Return the batch of the open stage; None: there is none, or there was nothing to do."""
        stage = self.open_stage
        return None if stage is None or stage.batch_id is None else self.batches[stage.batch_id]


def is_stopped(session: Session, course: CourseRow) -> bool:
    """Tell whether a course is to end: it is being cancelled, or its tenant is gone."""
    return course.state == CANCELLING or session.get_one(Tenant, course.tenant_id).deleted_at is not None
