"""Rows of a course's stages: their begin and end, and their batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from jobs.batches import made_inputs
from jobs.batches.submission import CreateBatch
from jobs.files import NewFile
from jobs.graphs.windows import window_left
from jobs.settings import Settings
from jobs.states import AskedPriority, InvalidLines
from jobs.tables import Batch, Tenant
from jobs.tables.courses import CourseRow, StageColumns

StageRow = TypeVar("StageRow", bound=StageColumns)


def stages_of_each(
    session: Session, rows: type[StageRow], course_id: InstrumentedAttribute[str], course_ids: Collection[str]
) -> dict[str, list[StageRow]]:
    """Return the begun stages of several courses, in order, by course id; in one query."""
    stages_by_course: dict[str, list[StageRow]] = {one: [] for one in course_ids}
    query = select(course_id, rows).where(course_id.in_(course_ids)).order_by(rows.number)
    for one, stage in session.execute(query):
        stages_by_course[one].append(stage)
    return stages_by_course


def batches_of(session: Session, stages: Sequence[StageColumns]) -> dict[str, Batch]:
    """Return the batches of stages by their ids."""
    ids = [stage.batch_id for stage in stages if stage.batch_id is not None]
    return {batch.id: batch for batch in session.scalars(select(Batch).where(Batch.id.in_(ids)))}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBatch:
    """The batch of a stage, apart from its lines."""

    stage: str
    endpoint: str
    metadata: Mapping[str, str]
    """In addition to the stage."""
    outputs_last_seconds: int
    least_minutes: int = 1
    """Minimum window, even where the course's time is over."""


def begin(
    session: Session,
    course: CourseRow,
    row: StageColumns,
    *,
    lines: NewFile | None,
    wanted: StageBatch,
    settings: Settings,
) -> None:
    """Record that a stage has begun and create its batch, in the transaction of the claim; no batch without lines.

    Raises what creating a batch raises.
    """
    if lines is not None:
        row.batch_id = _submit(session, course, lines, wanted, settings).id
    session.add(row)
    course.num_tries = 0
    course.reason = None
    session.flush()


def _submit(session: Session, course: CourseRow, lines: NewFile, wanted: StageBatch, settings: Settings) -> Batch:
    created = CreateBatch(
        input_file_id="",
        made_from=f"{wanted.stage} of {course.id}",
        endpoint=wanted.endpoint,
        completion_window=window_left(session, course.expires_at, least_minutes=wanted.least_minutes),
        metadata={**wanted.metadata, "stage": wanted.stage},
        output_expires_after_seconds=wanted.outputs_last_seconds,
        priority=AskedPriority(course.priority),
        invalid_lines=InvalidLines.SKIP,
        is_ours=True,
    )
    tenant = session.get_one(Tenant, course.tenant_id)
    return made_inputs.submit(session, tenant, created, lines, settings, key_id=course.api_key_id).batch


def note_ended(session: Session, course: CourseRow, stage: StageColumns) -> None:
    """Record that a stage is over; the tries of the next one are counted from zero."""
    stage.done_at = session.scalar(select(func.now()))
    course.num_tries = 0
    session.flush()
