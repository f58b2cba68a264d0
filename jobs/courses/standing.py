"""Standing of a course: its begun stages and their batches."""

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
    """A course as its worker found it."""

    begun: Sequence[StageRow_co]
    batches: Mapping[str, Batch]
    """Of the stages, by id."""
    is_stopped: bool
    """Whether it is to end: it is being cancelled, or its tenant was deleted."""
    is_over: bool

    @property
    def open_stage(self) -> StageRow_co | None:
        """Return the stage whose end is not recorded."""
        return self.begun[-1] if self.begun and self.begun[-1].done_at is None else None

    @property
    def open_batch(self) -> Batch | None:
        """Return the batch of the open stage; None where there is none, or there was nothing to do."""
        stage = self.open_stage
        return None if stage is None or stage.batch_id is None else self.batches[stage.batch_id]


def is_stopped(session: Session, course: CourseRow) -> bool:
    """Return whether a course is to end: it is being cancelled, or its tenant was deleted."""
    return course.state == CANCELLING or session.get_one(Tenant, course.tenant_id).deleted_at is not None
