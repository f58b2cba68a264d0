"""Tests of when a batch is late, so that its lines may leave: by the forecast of the house."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.chunks import claiming, fleet
from jobs.engines import fits
from jobs.engines.engine import OWN_ENGINE
from jobs.forecasts import snapshot
from jobs.forecasts.lateness import GONE_SECONDS, House, is_late
from jobs.tables import Tenant
from tests.jobs.chunks.builders import LEASE, flush
from tests.jobs.engines.outside import OUTSIDE, Run, allow, claim, forecast, look_after, start


@pytest.fixture
def house(session: Session, run: Run, tenant: Tenant) -> None:
    """A worker of the house that computes 10 tokens/s, and one outside it; the tenant's lines may leave."""
    start(session, OWN_ENGINE, "own")
    start(session, OUTSIDE)
    allow(session, tenant)
    first = run(8, engine_choice="any")
    ids = session.scalars(text("SELECT id FROM chunk WHERE batch_id = :id ORDER BY id"), {"id": first.id}).all()
    claimed = claiming.claim_chunk(session, ids[0], worker_id="own", lease=LEASE)
    assert claimed is not None
    look_after(session, 0)
    flush(session, claimed, range(4))
    look_after(session, 2.8)


def in_time(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


@pytest.mark.usefixtures("house")
def test_nothing_leaves_while_the_workers_of_the_house_meet_the_deadline(session: Session, run: Run) -> None:
    run(96, engine_choice="any", expires_at=in_time(3600))
    look_after(session, 1)
    assert claim(session, OUTSIDE) is None


@pytest.mark.usefixtures("house")
def test_lines_of_a_batch_that_the_house_cannot_finish_in_time_leave(session: Session, run: Run) -> None:
    late = run(96, engine_choice="any", expires_at=in_time(12))  # some 300 tokens at 10 a second
    look_after(session, 1)
    claimed = claim(session, OUTSIDE)
    assert claimed is not None
    assert (claimed.batch_id, claimed.is_spilled) == (late.id, True)
    own = claiming.claim_next(session, model="m", worker_id="own", lease=LEASE)
    assert own is not None
    assert not own.is_spilled


@pytest.mark.usefixtures("house")
def test_what_servers_outside_compute_makes_the_house_no_faster(session: Session, run: Run) -> None:
    run(96, engine_choice="any", expires_at=in_time(12))
    look_after(session, 1)
    rate = session.scalar(text("SELECT tokens_per_second FROM serving_rate"))
    claimed = claim(session, OUTSIDE)
    assert claimed is not None
    flush(session, claimed, range(claimed.first_line, claimed.first_line + 4))
    assert session.scalar(text("SELECT num_spilled FROM batch WHERE id = :id"), {"id": claimed.batch_id}) == 4
    look_after(session, 0.1)
    assert session.scalar(text("SELECT tokens_per_second FROM serving_rate")) <= rate
    assert snapshot.queue_of(session, "m").num_workers == 1


@pytest.mark.usefixtures("house")
def test_batches_leave_once_the_last_worker_of_the_house_is_gone_for_longer_than_a_restart(session: Session) -> None:
    for gone, leaves in ((20, False), (GONE_SECONDS + 1, True)):
        go_away(session, gone)
        session.execute(
            text("UPDATE batch SET created_at = clock_timestamp() - make_interval(secs => :s)"), {"s": GONE_SECONDS}
        )
        look_after(session, 1)
        assert (claim(session, OUTSIDE) is not None) == leaves


def go_away(session: Session, seconds: float) -> None:
    """Let the last heartbeat of the worker of the house lie so far in the past."""
    gone = "UPDATE worker SET heartbeat_at = clock_timestamp() - make_interval(secs => :s) WHERE id = 'own'"
    session.execute(text(gone), {"s": seconds})


@pytest.mark.usefixtures("house")
def test_a_new_batch_waits_for_a_worker_of_the_house_that_was_stopped_before_it_came(
    session: Session, run: Run
) -> None:
    run(4, engine_choice="any")
    go_away(session, GONE_SECONDS * 12)
    look_after(session, 1)
    assert claim(session, OUTSIDE) is None


def test_a_new_batch_of_a_scaled_model_waits_though_no_worker_of_the_house_is_known(
    session: Session, run: Run, tenant: Tenant
) -> None:
    start(session, OUTSIDE)
    allow(session, tenant)
    run(4, engine_choice="any")
    look_after(session, 0)
    assert session.scalar(text("SELECT is_late FROM forecast")) is True
    session.execute(
        text("INSERT INTO scaling (model, min_workers, max_workers, startup_seconds) VALUES ('m', 0, 2, 60)")
    )
    look_after(session, 1)
    assert session.scalar(text("SELECT is_late FROM forecast")) is False


@pytest.mark.parametrize("is_drained", [True, False])
def test_batches_stay_while_the_only_worker_of_the_house_is_drained_or_has_taken_itself_out(
    session: Session, run: Run, tenant: Tenant, *, is_drained: bool
) -> None:
    start(session, OWN_ENGINE, "own")
    start(session, OUTSIDE)
    allow(session, tenant)
    run(4, engine_choice="any")
    session.execute(text("UPDATE batch SET created_at = created_at - interval '1 hour'"))
    if is_drained:
        fleet.set_draining(session, fleet.find_worker(session, "own"), is_draining=True)
    else:
        fleet.heartbeat(session, "own", out_reason="its engine stands still")
    look_after(session, 0)
    assert session.scalar(text("SELECT is_late FROM forecast")) is False
    assert claim(session, OUTSIDE) is None


def test_a_batch_without_a_claim_to_time_never_leaves(session: Session, run: Run, tenant: Tenant) -> None:
    """Class overflow runs on idle capacity, and no deadline of it is met for money."""
    start(session, OUTSIDE)
    allow(session, tenant)
    run(4, engine_choice="any", priority="overflow")
    look_after(session, 0)
    assert session.scalar(text("SELECT is_late FROM forecast")) is True
    assert claim(session, OUTSIDE) is None


@pytest.mark.parametrize(
    ("seconds", "house", "late"),
    [
        (10.0, House(num_claiming=1, num_able=1, gone_seconds=0), False),
        (101.0, House(num_claiming=1, num_able=1, gone_seconds=0), True),
        (None, House(num_claiming=1, num_able=1, gone_seconds=0), False),
        (10.0, House(num_claiming=1, num_able=0, gone_seconds=0), True),
        (10.0, House(num_claiming=0, num_able=0, gone_seconds=10), False),
        (None, House(num_claiming=0, num_able=0, gone_seconds=GONE_SECONDS - 1), False),
        (None, House(num_claiming=0, num_able=0, gone_seconds=GONE_SECONDS), True),
        (None, House(num_claiming=0, num_able=0, gone_seconds=None), True),
    ],
)
def test_a_batch_is_late_by_its_forecast_or_without_workers_of_the_house(
    seconds: float | None, house: House, *, late: bool
) -> None:
    assert is_late(seconds, house, left_seconds=100.0, window_seconds=100.0 + GONE_SECONDS) == late


@pytest.mark.parametrize(("waited", "late"), [(0.0, False), (GONE_SECONDS - 1, False), (GONE_SECONDS, True)])
def test_a_batch_waits_for_workers_that_were_scaled_to_zero_before_it_came(waited: float, *, late: bool) -> None:
    for gone in (3600.0, math.inf):
        house = House(num_claiming=0, num_able=0, gone_seconds=gone)
        assert is_late(None, house, left_seconds=86_400.0 - waited, window_seconds=86_400.0) == late


@pytest.mark.parametrize("num", [0, 1])
def test_an_unknown_end_is_late_in_the_last_quarter_of_the_window(num: int) -> None:
    """Also if all workers of the house are out."""
    house = House(num_claiming=num, num_able=num, gone_seconds=0)
    assert not is_late(None, house, left_seconds=51.0, window_seconds=200.0)
    assert is_late(None, house, left_seconds=49.0, window_seconds=200.0)


def test_nothing_leaves_by_an_old_forecast(session: Session, run: Run, tenant: Tenant) -> None:
    start(session, OUTSIDE)
    allow(session, tenant)
    run(4, engine_choice="any")
    assert claim(session, OUTSIDE) is None, "there is no forecast"
    forecast(session, age=fits.FORECAST_KEPT * 2)
    assert claim(session, OUTSIDE) is None
    forecast(session)
    assert claim(session, OUTSIDE) is not None
