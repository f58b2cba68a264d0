"""Tests of the metrics of working roles, on a real database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.chunks import claiming, fleet
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.telemetry.declared import CONTROL, DISPATCHER
from jobs.telemetry.meters import Meters
from workers.control import Control
from workers.dispatcher import Dispatcher

MakeLine = Callable[..., dict[str, Any]]


class Broker:
    """Accepts hints, or none."""

    def __init__(self, *, is_up: bool) -> None:
        self._is_up = is_up

    def validate(self, _batch_id: str) -> bool:
        return self._is_up

    def finalise(self, _batch_id: str) -> bool:
        return self._is_up

    def run_chunk(self, _chunk_id: int, *, model: str) -> bool:
        return self._is_up


def value(meters: Meters, name: str, **labels: str) -> float | None:
    return meters.registry.get_sample_value(f"tokenmill_{name}", labels)


@pytest.mark.parametrize(("is_up", "outcome"), [(True, "sent"), (False, "dropped")])
def test_a_dispatcher_counts_hints_and_times_its_ticks(
    is_up: bool,
    outcome: str,
    maker: sessionmaker[Session],
    storage: Storage,
    settings: Settings,
    submit: Callable[..., str],
    line: MakeLine,
) -> None:
    meters = Meters(DISPATCHER)
    submit([line(0)])
    Dispatcher(maker, storage, hints=Broker(is_up=is_up), settings=settings, meters=meters).tick()
    assert value(meters, "hints_total", kind="validate", outcome=outcome) == 1
    assert value(meters, "tick_seconds_count") == 1


def test_a_dispatcher_counts_what_became_of_lost_leases(
    maker: sessionmaker[Session],
    storage: Storage,
    settings: Settings,
    submit_valid: Callable[..., str],
    line: MakeLine,
) -> None:
    submit_valid([line(0)])
    with maker.begin() as session:
        fleet.register(session, worker_id="w", model="demo", max_chunks=2, max_model_len=64)
        assert claiming.claim_next(session, model="demo", worker_id="w", lease=settings.lease) is not None
    with maker.begin() as session:
        session.execute(text("UPDATE chunk SET lease_until = now() - interval '1 second'"))
    meters = Meters(DISPATCHER)
    Dispatcher(maker, storage, hints=Broker(is_up=True), settings=settings, meters=meters).tick()
    assert value(meters, "lost_leases_total", outcome="ready") == 1


def test_a_control_worker_times_what_it_did_itself(
    maker: sessionmaker[Session], storage: Storage, settings: Settings, submit: Callable[..., str], line: MakeLine
) -> None:
    meters = Meters(CONTROL)
    control = Control(maker, storage, settings, meters=meters)
    control.validate(submit([line(0)]))
    control.validate(submit([{"no": "request"}]))
    assert value(meters, "validation_seconds_count", state="in_progress") == 1
    assert value(meters, "validation_seconds_count", state="failed") == 1
    control.finalise("batch_of_nobody")
    assert value(meters, "finalisation_seconds_count", state="completed") is None
