from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from jobs import database, partitions
from jobs.database import autocommit, transactions
from jobs.errors import ServiceError
from jobs.tables import Result

Make = Callable[..., Any]
DAY = date(2026, 2, 28)


def add_result(session: Session, day: date) -> None:
    session.add(
        Result(
            batch_day=day, batch_id="b", line_no=0, result_no=1, status_code=200, is_error=False, input_tokens=0,
            cached_tokens=0, output_tokens=0, line=b"{}",
        )
    )  # fmt: skip
    session.flush()


def test_a_days_partition_is_made_once_and_takes_that_days_results(session: Session) -> None:
    assert partitions.ensure_result_partition(session, DAY)
    assert not partitions.ensure_result_partition(session, DAY)
    assert DAY in partitions.partition_days(session)
    add_result(session, DAY)
    assert session.scalar(text("SELECT count(*) FROM result_20260228")) == 1


def test_a_result_of_a_day_without_a_partition_is_refused_loudly(session: Session) -> None:
    with pytest.raises(IntegrityError, match="no partition of relation"):
        add_result(session, DAY)


def test_a_repeated_result_is_refused_in_a_new_partition_too(session: Session) -> None:
    partitions.ensure_result_partition(session, DAY)
    add_result(session, DAY)
    session.expunge_all()
    with pytest.raises(IntegrityError, match="duplicate key"):
        add_result(session, DAY)


def test_making_a_partition_stops_no_flush(session: Session, maker: sessionmaker[Session]) -> None:
    """An open transaction that made one holds its lock; results of other days go in all the same."""
    with maker.begin() as other:
        partitions.ensure_result_partition(other, DAY)
        session.execute(text("SET LOCAL lock_timeout = '1s'"))
        add_result(session, datetime.now(UTC).date())


def test_several_processes_make_one_partition(maker: sessionmaker[Session]) -> None:
    made: list[bool] = []

    def ensure() -> None:
        with maker.begin() as own:
            made.append(partitions.ensure_result_partition(own, DAY))

    threads = [threading.Thread(target=ensure) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False] * 5 + [True]


def drop_before(maker: sessionmaker[Session], day: date) -> list[date]:
    with autocommit(maker) as session:
        partitions.detach_before(session, day)
    with maker.begin() as session:
        return partitions.drop_detached_before(session, day)


def test_old_partitions_are_dropped_with_their_results(session: Session, maker: sessionmaker[Session]) -> None:
    for days in range(3):
        partitions.ensure_result_partition(session, DAY + timedelta(days=days))
    add_result(session, DAY)
    session.commit()
    assert drop_before(maker, DAY + timedelta(days=2)) == [DAY, DAY + timedelta(days=1)]
    assert session.scalar(text("SELECT count(*) FROM result")) == 0
    assert DAY + timedelta(days=2) in partitions.partition_days(session)


def test_a_day_with_a_live_batch_is_kept(session: Session, maker: sessionmaker[Session], make_batch: Make) -> None:
    following = DAY + timedelta(days=1)
    for day in (DAY, following):
        partitions.ensure_result_partition(session, day)
    late = datetime(2026, 2, 28, 23, 59, 59, 999999, tzinfo=UTC)
    batch = make_batch(created_at=late, state="in_progress")
    assert drop_before(maker, DAY + timedelta(days=9)) == [following]
    batch.state = "completed"
    session.commit()
    assert drop_before(maker, DAY + timedelta(days=9)) == [DAY]


def test_dropping_waits_for_a_reader_and_stops_no_flush(session: Session, maker: sessionmaker[Session]) -> None:
    """A reader of hours: the day is given up, nobody else waits, and the next try ends what was begun."""
    partitions.ensure_result_partition(session, DAY)
    session.commit()
    given_up: list[BaseException] = []

    def drop() -> None:
        with pytest.raises(ServiceError, match="lock timeout") as caught:
            drop_before(maker, DAY + timedelta(days=1))
        given_up.append(caught.value)

    with maker.begin() as reader:
        reader.execute(text("SELECT count(*) FROM result"))
        thread = threading.Thread(target=drop)
        thread.start()
        while not session.scalar(text("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")):
            assert thread.is_alive()
            session.rollback()
        session.execute(text("SET LOCAL lock_timeout = '1s'"))
        add_result(session, datetime.now(UTC).date())
        session.commit()
        thread.join()
    assert len(given_up) == 1
    assert not partitions.has_partition(session, DAY), "nobody may think that its results can be read"
    session.rollback()
    assert drop_before(maker, DAY + timedelta(days=1)) == [DAY]


@pytest.fixture
def pooled(database_url: str) -> Iterator[sessionmaker[Session]]:
    """Sessions on servers that have no timeout of ours, as a pooler hands them out; `test_pooler` has a real one."""
    engine = database.connect(database_url)

    def forget(connection: Any, record: Any) -> None:
        connection.execute("RESET lock_timeout")
        connection.commit()
        record.info["is_pooled"] = True

    event.listen(engine, "connect", forget)
    yield database.sessions(engine)
    engine.dispose()


def test_dropping_behind_a_pooler_does_not_wait_for_a_reader_either(
    session: Session, pooled: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_ALONE_SECONDS", 0.2)
    partitions.ensure_result_partition(session, DAY)
    session.commit()
    session.execute(text("SELECT count(*) FROM result"))
    with ThreadPoolExecutor(1) as threads:
        dropping = threads.submit(drop_before, pooled, DAY + timedelta(days=1))
        error = dropping.exception(timeout=60)
        session.rollback()
    assert isinstance(error, ServiceError)
    assert drop_before(pooled, DAY + timedelta(days=1)) == [DAY]


def test_a_day_that_was_detached_and_not_dropped_is_dropped(session: Session, maker: sessionmaker[Session]) -> None:
    partitions.ensure_result_partition(session, DAY)
    session.commit()
    with autocommit(maker) as plain:
        partitions.detach_before(plain, DAY + timedelta(days=1))
    session.execute(text("CREATE TABLE result_notes ()"))
    session.commit()
    assert drop_before(maker, DAY + timedelta(days=1)) == [DAY]
    assert session.scalar(text("SELECT to_regclass('result_notes') IS NOT NULL")), "not one of ours"


def test_a_batchs_day_is_the_utc_day() -> None:
    tokyo = timezone(timedelta(hours=9))
    assert partitions.batch_day(datetime(2026, 3, 1, 8, 0, tzinfo=tokyo)) == DAY


def test_only_days_are_taken_for_partitions() -> None:
    assert partitions.is_partition_name("result_20260228")
    for name in ("result", "result_2026", "result_20260228_old", "xresult_20260228"):
        assert not partitions.is_partition_name(name)
