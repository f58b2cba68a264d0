"""Tests of runs without room in the service or for their tenant: they wait and report it, or fail with the numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from features.pipelines import lifecycle, stores
from features.pipelines.external.store import ExternalStore
from features.pipelines.states import RunState
from features.pipelines.tables import Run
from jobs.accounts.limits import set_limits
from tests.effects import Effects
from tests.features.pipelines.work.run_builders import House, WatchedStore
from tests.flows.advancers import runs_of


def test_a_run_waits_where_the_service_takes_no_more_batches(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one"})
    run_id = house.trigger(house.make())
    with house.maker.begin() as session:
        lifecycle.start_queued(session)
    full = house.settings.model_copy(update={"max_open_batches": 0})
    runs_of(house.maker, house.storage, full).advance(run_id)
    run = house.run(run_id)
    assert (run.state, run.num_tries, run.look_at is None) == (RunState.RUNNING, 0, False)
    assert house.finish(run_id).state == RunState.SUCCEEDED


def limited(house: House) -> str:
    """Return a run of a tenant that may have no open batch."""
    house.put("in/a.jsonl", {"text": "one"})
    run_id = house.trigger(house.make())
    with house.maker.begin() as session:
        set_limits(session, house.tenant_id, {"open_batches": 0})
        lifecycle.start_queued(session)
    return run_id


def test_a_run_waits_at_its_tenants_limits_says_so_and_goes_on_once_there_is_room(house: House) -> None:
    run_id = limited(house)
    for _ in range(8):
        with house.maker.begin() as session:
            session.execute(text("UPDATE flow SET look_at = NULL"))
        house.runs().advance(run_id)
        run = house.run(run_id)
        assert (run.state, run.num_tries, run.look_at is None) == (RunState.RUNNING, 0, False)
        assert "open batches" in (run.reason or "")
    with house.maker.begin() as session:
        set_limits(session, house.tenant_id, {"open_batches": None})
        session.execute(text("UPDATE flow SET look_at = NULL"))
    house.runs().advance(run_id)
    assert house.run(run_id).reason is None
    assert house.finish(run_id).state == RunState.SUCCEEDED


def look_again(house: House, run_id: str, **given: Any) -> Run:
    """Let a control worker check a run now; return the run."""
    with house.maker.begin() as session:
        session.execute(text("UPDATE flow SET look_at = NULL"))
    house.runs(**given).advance(run_id)
    return house.run(run_id)


def unread(opened: list[str]) -> Callable[..., ExternalStore]:
    """Return what opens stores whose files are noted and not opened."""

    def open_store(*given: Any, **options: Any) -> ExternalStore:
        store = WatchedStore(stores.open_registered(*given, **options), Effects())
        store.open = opened.append  # type: ignore[method-assign, assignment]
        return store

    return open_store


def test_a_run_without_room_reads_a_large_source_not_even_once(house: House) -> None:
    run_id = limited(house)
    house.put("in/b.jsonl", {"text": "x" * (4 << 20)})
    opened: list[str] = []
    assert look_again(house, run_id, open_store=unread(opened)).state == RunState.RUNNING
    assert opened == []


def test_a_run_without_room_does_not_read_its_source_again_and_looks_again_ever_later(house: House) -> None:
    run_id = limited(house)
    assert look_again(house, run_id).state == RunState.RUNNING
    opened: list[str] = []
    pauses = []
    for waited in (1, 30, 60, 240, 3600, 86_100):
        with house.maker.begin() as session:
            started = text("UPDATE run SET started_at = clock_timestamp() - make_interval(secs => :waited)")
            session.execute(started, {"waited": waited})
        assert look_again(house, run_id, open_store=unread(opened)).state == RunState.RUNNING
        with house.maker() as session:
            pauses.append(session.scalar(text("SELECT extract(epoch FROM look_at - clock_timestamp()) FROM flow")))
    wanted = [30, 30, 60, 240, 600, 300]
    assert [float(pause) for pause in pauses] == pytest.approx(wanted, abs=8), "at last when its time is over"
    assert (opened, list(house.storage.iter_objects())) == ([], [])


def test_a_run_with_nothing_to_do_needs_no_room(house: House) -> None:
    run_id = limited(house)
    (house.documents / "in/a.jsonl").unlink()
    assert look_again(house, run_id).state == RunState.SUCCEEDED


def test_a_run_that_never_has_room_fails_at_once_with_both_numbers(house: House) -> None:
    run_id = limited(house)
    with house.maker.begin() as session:
        set_limits(session, house.tenant_id, {"open_batches": None, "enqueued_tokens": 5})
    run = look_again(house, run_id)
    assert (run.state, run.num_tries) == (RunState.FAILED, 0)
    said = r"This batch has about \d+ tokens, and all your open batches together may have 5, so it never has room\."
    assert re.match(said, run.reason or "")
    assert list(house.storage.iter_objects()) == []


def test_a_run_without_room_fails_with_the_limit_once_the_time_of_its_step_is_over(house: House) -> None:
    run_id = limited(house)
    for hours, state in ((23, RunState.RUNNING), (25, RunState.FAILED)):
        with house.maker.begin() as session:
            started = "clock_timestamp() - make_interval(hours => :hours)"
            session.execute(text("UPDATE flow SET look_at = NULL"))
            session.execute(text(f"UPDATE run SET started_at = {started}"), {"hours": hours})
        house.runs().advance(run_id)
        assert house.run(run_id).state == state
    assert "open batches" in (house.run(run_id).reason or "")
