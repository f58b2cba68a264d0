"""Initial pipelines and schedules."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy.orm import Session

from features.pipelines.scheduling.due import set_next, timetable_of
from features.pipelines.tables import Pipeline, Schedule
from jobs.ids import new_id
from jobs.tables import Tenant
from tests.all_settings import Settings

MakeSchedule = Callable[..., Schedule]


@pytest.fixture
def settings() -> Settings:
    return Settings()


STEP = {
    "name": "fields",
    "source": {"store": "documents", "keys": "in/*.jsonl"},
    "prompt": "{{ text }}",
    "model": "demo",
    "output": {"store": "results", "keys": "out/part-{n}.jsonl"},
}


@pytest.fixture
def pipeline(session: Session, tenant: Tenant) -> Pipeline:
    pipeline = Pipeline(id=new_id("pipeline"), tenant_id=tenant.id, name="nightly", definition={"steps": [STEP]})
    session.add(pipeline)
    session.commit()
    return pipeline


@pytest.fixture
def make_schedule(session: Session, pipeline: Pipeline) -> MakeSchedule:
    """Insert a schedule that counts from `at` on; keywords override its columns."""

    def make(cron: str = "0 * * * *", *, at: datetime | None = None, **columns: Any) -> Schedule:
        values: dict[str, Any] = {
            "id": new_id("schedule"),
            "tenant_id": pipeline.tenant_id,
            "pipeline_id": pipeline.id,
            "name": new_id("name"),
            "cron": cron,
            "time_zone": "UTC",
            "jitter_seconds": 0,
            "overlap": "skip",
            "catch_up": "latest",
            "catch_up_seconds": 6 * 3600,
        }
        schedule = Schedule(**values | columns)
        timetable = timetable_of(schedule)
        set_next(schedule, timetable, timetable.first(starts_at=None, now=at or datetime.now(UTC)))
        session.add(schedule)
        session.commit()
        return schedule

    return make
