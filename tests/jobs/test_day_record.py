"""Tests of recording a day: lengths, classes and times of what ended; what is left out is counted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs import day_record
from jobs.errors import InputError
from jobs.partitions import batch_day
from jobs.tables import Batch, Decision, Result, Tenant

NOON = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
MORNING, EVENING = NOON - timedelta(hours=6), NOON + timedelta(hours=6)
Make = Callable[..., Batch]


@pytest.fixture
def make_ended(session: Session, make_batch: Make) -> Make:
    """Insert a batch that arrived so many seconds after noon, with answers given as (seconds after noon, tokens …)."""

    def make(arrival: float, *answers: tuple[float, int, int, int], **columns: Any) -> Batch:
        arrived = NOON + timedelta(seconds=arrival)
        values: dict[str, Any] = {"state": "completed", "model": "m", "in_progress_at": arrived, "created_at": arrived}
        batch = make_batch(**values | columns)
        for number, (seconds, given, cached, answered) in enumerate(answers):
            session.add(
                Result(
                    batch_day=batch_day(batch.created_at), batch_id=batch.id, line_no=number, result_no=number + 1,
                    status_code=200, is_error=False, input_tokens=given, cached_tokens=cached, output_tokens=answered,
                    line=b"{}", created_at=NOON + timedelta(seconds=seconds),
                )
            )  # fmt: skip
        session.commit()
        return batch

    return make


def test_a_batch_is_read_with_its_lengths_and_what_became_of_it(
    session: Session, make_ended: Make, tenant: Tenant
) -> None:
    tenant.weight = 2.0
    make_ended(
        5.0, (9.0, 100, 40, 7), (8.0, 50, 0, 3), (7.0, 0, 0, 0),
        priority="urgent", worker_microseconds=2_500_000, expires_at=NOON + timedelta(hours=1),
    )  # fmt: skip
    [batch] = day_record.recorded(session, MORNING, EVENING)
    assert (batch.tenant, batch.weight, batch.model, batch.priority) == ("acme", 2.0, "m", "urgent")
    assert batch.lines == [(100, 40, 7), (50, 0, 3)], "a line that used no tokens took no worker's time"
    moments = (batch.arrived_at, batch.first_answer_at, batch.ended_at, batch.deadline_at)
    assert [(moment - NOON).total_seconds() for moment in moments] == [5.0, 8.0, 9.0, 3600.0]
    assert (batch.max_tokens, batch.worker_seconds) == (20, 2.5)


def test_batches_come_in_the_order_of_arrival_and_the_end_of_the_span_is_not_in_it(
    session: Session, make_ended: Make
) -> None:
    for arrival in (3.0, 1.0, 2.0):
        make_ended(arrival, (5.0, 10 * int(arrival), 0, 1))
    found = list(day_record.recorded(session, NOON + timedelta(seconds=1), NOON + timedelta(seconds=3)))
    assert [batch.lines[0][0] for batch in found] == [10, 20]


def test_what_is_left_out_is_counted_and_workers_are_those_that_took_up_work(
    session: Session, make_ended: Make
) -> None:
    ended = make_ended(1.0, (2.0, 10, 0, 1))
    make_ended(2.0, (3.0, 10, 0, 1), state="in_progress")
    make_ended(3.0)
    for worker in ("w1", "w2"):
        row = Decision(batch_id=ended.id, kind="claimed", subject=worker, num=3, first_at=NOON, last_at=NOON)
        session.add(row)
    session.commit()
    span = day_record.describe(session, MORNING, EVENING)
    assert (span.num_open, span.num_forgotten, span.num_workers) == (1, 1, {"m": 2})
    assert len(list(day_record.recorded(session, MORNING, EVENING))) == 1
    session.execute(text("DELETE FROM decision"))
    assert day_record.describe(session, MORNING, EVENING).num_workers == {}


def test_a_span_that_ends_before_it_begins_is_refused(session: Session) -> None:
    with pytest.raises(InputError, match="give a later end"):
        day_record.describe(session, EVENING, MORNING)
