"""`/v1/schedules`: create, read, list, change, pause, resume, delete schedules, and backfill their runs."""

from __future__ import annotations

from typing import Annotated, Any
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, Field
from sqlalchemy.orm import Session

from api.auth import KeyIdDep, TenantDep
from api.fields import ObjectId, Storable, StrictModel
from api.openapi import failures
from api.services import ServicesDep
from api.sessions import SessionDep
from features.pipelines import definitions
from features.pipelines.scheduling import schedules
from features.pipelines.scheduling.cron import Tick
from features.pipelines.scheduling.schedules import ScheduleWish
from features.pipelines.schemas.pipelines import BackfillObject, DeletedSchedule, ScheduleObject, SchedulePage
from features.pipelines.settings import PipelineSettings
from features.pipelines.states import CatchUp, Overlap
from features.pipelines.tables import Schedule

_NUM_NEXT = 5

router = APIRouter(prefix="/v1/schedules", tags=["pipelines"], responses=failures(401, 403, 429, 503))

Text = Annotated[Storable, Field(max_length=200)]
Count = Annotated[int, Field(ge=-(2**31), lt=2**31)]


class ListQuery(StrictModel):
    pipeline: ObjectId | None = None
    """Its id or its name."""
    after: ObjectId | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class ScheduleBody(StrictModel):
    pipeline: ObjectId
    """Its id or its name."""
    name: Text
    cron: Text
    time_zone: Text = "UTC"
    starts_at: AwareDatetime | None = None
    ends_at: AwareDatetime | None = None
    jitter_seconds: Count = 0
    overlap: Overlap = Overlap.SKIP
    catch_up: CatchUp = CatchUp.LATEST
    catch_up_seconds: Count = 6 * 3600
    max_failures: Count | None = None
    late_after_seconds: Count | None = None


class ChangeScheduleBody(StrictModel):
    """The fields to change; those left out stay as they are."""

    name: Text | None = None
    cron: Text | None = None
    time_zone: Text | None = None
    starts_at: AwareDatetime | None = None
    ends_at: AwareDatetime | None = None
    jitter_seconds: Count | None = None
    overlap: Overlap | None = None
    catch_up: CatchUp | None = None
    catch_up_seconds: Count | None = None
    max_failures: Count | None = None
    late_after_seconds: Count | None = None


class BackfillBody(StrictModel):
    start: AwareDatetime
    end: AwareDatetime


_MAY_BE_NULL = {"starts_at", "ends_at", "max_failures", "late_after_seconds"}


@router.post("", operation_id="createSchedule", responses=failures(404, 408, 409, 413, 429))
def create(body: ScheduleBody, session: SessionDep, *, tenant: TenantDep, services: ServicesDep) -> ScheduleObject:
    """Run a pipeline from now on at the times of a cron expression."""
    wish = ScheduleWish(**body.model_dump(exclude={"pipeline"}))
    return _shown(
        session,
        schedules.create_schedule(session, tenant.id, body.pipeline, wish, services.settings.of(PipelineSettings)),
    )


@router.get("", operation_id="listSchedules", responses=failures(404))
def list_page(session: SessionDep, *, tenant: TenantDep, query: Annotated[ListQuery, Query()]) -> SchedulePage:
    pipeline_id = None
    if query.pipeline is not None:
        pipeline_id = definitions.get_pipeline(session, tenant.id, query.pipeline).id
    page = schedules.list_schedules(session, tenant.id, pipeline_id=pipeline_id, after=query.after, limit=query.limit)
    return SchedulePage.of([_listed(each) for each in page.data], has_more=page.has_more)


@router.get("/{schedule_id}", operation_id="retrieveSchedule", responses=failures(404))
def retrieve(schedule_id: str, session: SessionDep, *, tenant: TenantDep) -> ScheduleObject:
    """Return a schedule by its id or its name."""
    return _shown(session, schedules.get_schedule(session, tenant.id, schedule_id))


@router.patch("/{schedule_id}", operation_id="changeSchedule", responses=failures(404, 408, 409, 413))
def change(schedule_id: str, body: ChangeScheduleBody, session: SessionDep, *, tenant: TenantDep) -> ScheduleObject:
    """Change a schedule; changes of its times count from now."""
    values: dict[str, Any] = body.model_dump(exclude_unset=True)
    changes = {name: value for name, value in values.items() if value is not None or name in _MAY_BE_NULL}
    return _shown(session, schedules.change_schedule(session, tenant.id, schedule_id, changes))


@router.post("/{schedule_id}/pause", operation_id="pauseSchedule", responses=failures(404))
def pause(schedule_id: str, session: SessionDep, *, tenant: TenantDep) -> ScheduleObject:
    return _shown(session, schedules.pause_schedule(session, tenant.id, schedule_id))


@router.post("/{schedule_id}/resume", operation_id="resumeSchedule", responses=failures(404))
def resume(schedule_id: str, session: SessionDep, *, tenant: TenantDep) -> ScheduleObject:
    """Resume a schedule from now; runs missed meanwhile are not caught up."""
    return _shown(session, schedules.resume_schedule(session, tenant.id, schedule_id))


@router.post("/{schedule_id}/backfill", operation_id="backfillSchedule", responses=failures(404, 408, 413, 429))
def backfill(
    schedule_id: str,
    body: BackfillBody,
    session: SessionDep,
    *,
    tenant: TenantDep,
    key_id: KeyIdDep,
    services: ServicesDep,
) -> BackfillObject:
    """Queue a run for each time of the schedule in a past range, both ends included; existing runs stay."""
    runs = schedules.backfill(
        session,
        tenant.id,
        schedule_id,
        start=body.start,
        end=body.end,
        settings=services.settings.of(PipelineSettings),
        api_key_id=key_id,
    )
    return BackfillObject(runs=[run.id for run in runs])


@router.delete("/{schedule_id}", operation_id="deleteSchedule", responses=failures(404))
def delete(schedule_id: str, session: SessionDep, *, tenant: TenantDep) -> DeletedSchedule:
    """Delete a schedule; its runs stay visible, and queued ones are cancelled."""
    return DeletedSchedule(id=schedules.delete_schedule(session, tenant.id, schedule_id).id)


def _listed(schedule: Schedule) -> ScheduleObject:
    """Return a schedule with only its next run, which is stored: computing more for a page of 100 may take long."""
    if schedule.next_at is None or schedule.paused_at is not None:
        return ScheduleObject.of(schedule, [])
    local = schedule.next_at.astimezone(ZoneInfo(schedule.time_zone))
    return ScheduleObject.of(schedule, [Tick(at=schedule.next_at, local=local, note=None)])


def _shown(session: Session, schedule: Schedule) -> ScheduleObject:
    return ScheduleObject.of(schedule, schedules.upcoming(session, schedule, number=_NUM_NEXT))
