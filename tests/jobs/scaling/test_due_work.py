"""Tests of the work that a measurement keeps for the function."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from jobs.chunks import fleet
from jobs.forecasts import snapshot
from jobs.scaling.asking import ask
from jobs.scaling.limits import Limits, remove_limits, set_limits
from jobs.tables import Batch, DueWork

Run = Callable[..., Batch]


def kept(session: Session) -> list[tuple[float, float]]:
    """Measure, and return the kept deadlines in hours from now with their tokens."""
    snapshot.take(session)
    session.commit()
    row = session.get(DueWork, "m", populate_existing=True)
    if row is None:
        return []
    now = datetime.now(UTC).timestamp()
    return [(round((at - now) / 3600, 2), tokens) for at, tokens in zip(row.deadlines, row.due_tokens, strict=True)]


def test_a_deadline_has_all_work_that_the_queue_serves_by_then(session: Session, run: Run) -> None:
    for hours in (3, 1, 2):
        run(8, expires_at=datetime.now(UTC) + timedelta(hours=hours))
    set_limits(session, "m", Limits(max_workers=9, expected_rate=1.0))
    soon, later, last = kept(session)
    assert (soon[0], later[0], last[0]) == (1, 2, 3)
    assert 0 < soon[1] < later[1] < last[1]
    assert last[1] == 3 * soon[1]
    assert ask(session, "m") == 1


def test_work_of_a_class_that_goes_first_counts_for_the_other(session: Session, run: Run) -> None:
    run(8, priority="bulk", expires_at=datetime.now(UTC) + timedelta(hours=1))
    run(8, priority="normal", expires_at=datetime.now(UTC) + timedelta(hours=9))
    set_limits(session, "m", Limits(max_workers=9))
    ((hours, tokens),) = kept(session)
    assert hours == 1, "all is served before the nearer deadline, and nothing after it"
    assert tokens > 0


def test_work_is_kept_for_models_with_settings_alone(session: Session, run: Run) -> None:
    run(4)
    assert kept(session) == []
    set_limits(session, "m", Limits(max_workers=9))
    assert len(kept(session)) == 1
    remove_limits(session, "m")
    assert kept(session) == []


def test_a_model_without_work_is_measured_too(session: Session, run: Run) -> None:
    batch = run(4)
    set_limits(session, "m", Limits(max_workers=9))
    set_limits(session, "other", Limits(max_workers=9, min_workers=2))
    assert len(kept(session)) == 1
    assert (ask(session, "m"), ask(session, "other")) == (1, 2)
    batch.state = "completed"
    session.commit()
    assert kept(session) == []
    assert ask(session, "m") == 1, "held for five minutes"


def test_the_number_that_was_needed_is_held(session: Session, run: Run) -> None:
    batch = run(8, expires_at=datetime.now(UTC) + timedelta(minutes=4))
    set_limits(session, "m", Limits(max_workers=9, startup_seconds=10, expected_rate=0.5))
    fleet.register(session, worker_id="w", model="m", max_chunks=1, max_model_len=64)
    kept(session)
    most = ask(session, "m")
    assert most > 1
    batch.state = "completed"
    session.commit()
    kept(session)
    row = session.get_one(DueWork, "m", populate_existing=True)
    assert row.peaks == [most, 0]
    assert ask(session, "m") == most
