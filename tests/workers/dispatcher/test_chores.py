"""Tests of a dispatcher's work beside its ticks: counts, forecasts and runs of schedules."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from features.pipelines.scheduling import schedules
from features.pipelines.scheduling.schedules import ScheduleWish
from features.pipelines.tables import Pipeline
from jobs import chores, metrics, served_models
from jobs.database import try_advisory_lock
from jobs.scaling.limits import Limits, set_limits
from jobs.storage import Storage
from jobs.tables import Tenant
from jobs.telemetry.meters import Sample
from tests.all_settings import Settings
from tests.workers.dispatcher.builders import MakeLines
from workers.app import make_app
from workers.dispatcher import Dispatcher
from workers.hints import HintSender

NO_BROKER = "redis://127.0.0.1:1/0"


@pytest.fixture
def dispatcher(maker: sessionmaker[Session], storage: Storage, settings: Settings) -> Dispatcher:
    """A dispatcher that sends nothing: these tests need no hints."""
    return Dispatcher(maker, storage, hints=HintSender(make_app(NO_BROKER)), settings=settings)


def test_a_dispatcher_forecasts_batches_again_when_that_is_due(
    dispatcher: Dispatcher,
    submit_valid: Callable[..., str],
    lines: MakeLines,
    maker: sessionmaker[Session],
) -> None:
    def forecasts() -> list[str]:
        with maker() as session:
            return list(session.scalars(text("SELECT batch_id FROM forecast")))

    first = submit_valid(lines(1))
    dispatcher.forecast()
    second = submit_valid(lines(1))
    dispatcher.forecast()
    assert forecasts() == [first], "not due yet"
    with maker.begin() as session:
        session.execute(text("UPDATE chore SET due_at = now()"))
    dispatcher.forecast()
    assert sorted(forecasts()) == sorted([first, second])


def test_without_open_batches_models_with_settings_for_scaling_are_measured(
    dispatcher: Dispatcher, maker: sessionmaker[Session]
) -> None:
    def measured() -> list[str]:
        with maker() as session:
            return list(session.scalars(text("SELECT model FROM due_work")))

    dispatcher.forecast_at_rest()
    with maker.begin() as session:
        assert session.scalars(text("SELECT name FROM chore")).all() == [], "nothing is measured for nobody"
        served_models.add_model(session, "scaled", "/models/scaled")
        set_limits(session, "scaled", Limits(max_workers=2))
    dispatcher.forecast_at_rest()
    assert measured() == ["scaled"]


def test_one_dispatcher_counts_the_queue_for_all_and_for_whoever_asks(
    dispatcher: Dispatcher,
    submit: Callable[..., str],
    lines: MakeLines,
    maker: sessionmaker[Session],
    storage: Storage,
    settings: Settings,
) -> None:
    other = Dispatcher(maker, storage, hints=HintSender(make_app(NO_BROKER)), settings=settings)

    def shown() -> float:
        with maker() as session:
            samples = [found for found in metrics.read_samples(session) if isinstance(found, Sample)]
        return sum(sample.value for sample in samples if sample.meter.name == "tokenmill_batches")

    submit(lines(1))
    dispatcher.count_queue()
    submit(lines(1))
    other.count_queue()
    assert shown() == 1, "counted once"
    with maker.begin() as session:
        session.execute(text("UPDATE chore SET due_at = now()"))
    other.count_queue()
    assert shown() == 2


def test_a_chore_that_is_not_due_writes_nothing(maker: sessionmaker[Session]) -> None:
    hold = timedelta(minutes=1)
    with maker.begin() as session:
        assert chores.claim(session, "sweep", hold=hold)
    with maker.begin() as session:
        assert not chores.claim(session, "sweep", hold=hold)
        assert session.scalar(text("SELECT pg_current_xact_id_if_assigned()")) is None, "nothing to write down"


def test_a_dispatcher_makes_the_runs_of_schedules_without_leading_and_without_an_open_batch(
    dispatcher: Dispatcher, maker: sessionmaker[Session], tenant: Tenant
) -> None:
    row = {"tenant_id": tenant.id, "name": "nightly"}
    with maker.begin() as session:
        session.add(Pipeline(id="pipeline_1", definition={"steps": []}, **row))
        session.flush()
        wish = ScheduleWish(name="nightly", cron="* * * * *")
        schedules.create_schedule(session, tenant.id, "pipeline_1", wish, Settings())
        due = "UPDATE schedule SET next_at = next_at - interval '1 minute', due_at = due_at - interval '1 minute'"
        session.execute(text(due))
    with maker.begin() as leader:
        assert try_advisory_lock(leader, "dispatcher")
        dispatcher.make_due_runs()
    with maker() as session:
        assert session.scalars(text("SELECT state FROM flow")).all() == ["queued"]
