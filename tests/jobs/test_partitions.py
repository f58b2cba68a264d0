from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DataError, IntegrityError, OperationalError
from sqlalchemy.orm import Session, sessionmaker

from jobs import database, partitions
from jobs.database import autocommit
from jobs.errors import ServiceError
from jobs.tables import Result

Make = Callable[..., Any]
DAY = date(2024, 2, 28)


def add_result(session: Session, day: date) -> None:
    session.add(
        Result(
            batch_day=day, batch_id="b", line_no=0, result_no=1, status_code=200, is_error=False, input_tokens=0,
            cached_tokens=0, output_tokens=0, line=b"{}",
        )
    )  # fmt: skip
    session.flush()


@pytest.mark.changes_schema
def test_a_days_partition_is_made_once_and_takes_that_days_results(session: Session) -> None:
    assert partitions.ensure_result_partition(session, DAY)
    assert not partitions.ensure_result_partition(session, DAY)
    assert DAY in partitions.partition_days(session)
    add_result(session, DAY)
    assert session.scalar(text("SELECT count(*) FROM result_20240228")) == 1


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
    with database.transaction(maker) as session:
        return [due for due in partitions.days_to_drop(session, day) if partitions.drop_partition(session, due)]


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
    late = datetime(2024, 2, 28, 23, 59, 59, 999999, tzinfo=UTC)
    batch = make_batch(created_at=late, state="in_progress")
    assert drop_before(maker, DAY + timedelta(days=9)) == [following]
    batch.state = "completed"
    session.commit()
    assert drop_before(maker, DAY + timedelta(days=9)) == [DAY]


@pytest.mark.changes_schema
def test_a_day_behind_a_reader_is_given_up_and_stops_no_flush(session: Session, maker: sessionmaker[Session]) -> None:
    """A reader of hours: the day stays as it was, whose results can be read, and the next try drops it."""
    partitions.ensure_result_partition(session, DAY)
    add_result(session, DAY)
    session.commit()
    with maker.begin() as reader:
        reader.execute(text("SELECT count(*) FROM result"))
        with pytest.raises(ServiceError, match="lock timeout"):
            drop_before(maker, DAY + timedelta(days=1))
        add_result(session, datetime.now(UTC).date())
        session.commit()
    assert partitions.has_partition(session, DAY)
    assert session.scalar(text("SELECT count(*) FROM result_20240228")) == 1
    session.rollback()
    assert drop_before(maker, DAY + timedelta(days=1)) == [DAY]


def test_a_day_is_waited_for_by_its_own_bound_whatever_the_connections(maker: sessionmaker[Session]) -> None:
    """As behind a pooler, which hands out servers that nobody has told of our lock timeout."""
    with maker.begin() as session:
        partitions.ensure_result_partition(session, DAY)
    with maker.begin() as reader, maker.begin() as session:
        reader.execute(text("SELECT count(*) FROM result"))
        session.execute(text("SET LOCAL lock_timeout = 0"))
        with pytest.raises(OperationalError, match="lock timeout"):
            partitions.drop_partition(session, DAY)


@pytest.mark.parametrize("is_pending", [False, True])
@pytest.mark.changes_schema
def test_a_day_that_another_release_detached_and_did_not_drop_is_dropped(
    session: Session, maker: sessionmaker[Session], is_pending: bool
) -> None:
    partitions.ensure_result_partition(session, DAY)
    session.execute(text("CREATE TABLE result_notes ()"))
    session.commit()
    detach = text("ALTER TABLE result DETACH PARTITION result_20240228 CONCURRENTLY")
    with maker() as reader, autocommit(maker) as plain:
        if is_pending:
            reader.execute(text("SELECT count(*) FROM result"))
            plain.execute(text("SET lock_timeout = '100ms'"))
            with pytest.raises(OperationalError, match="lock timeout"):
                plain.execute(detach)
            plain.execute(text("RESET lock_timeout"))
        else:
            plain.execute(detach)
    assert not partitions.has_partition(session, DAY)
    session.rollback()
    assert drop_before(maker, DAY + timedelta(days=1)) == [DAY]
    assert session.scalar(text("SELECT to_regclass('result_notes') IS NOT NULL")), "not one of ours"


def test_a_day_that_another_has_dropped_is_dropped_once(session: Session) -> None:
    partitions.ensure_result_partition(session, DAY)
    assert [partitions.drop_partition(session, DAY) for _ in range(2)] == [True, False]


NO_DAYS = ["'infinity'", "'-infinity'", "NULL", "'0044-03-15 BC'", "'1999-12-31'", "'12024-02-28'"]


@pytest.mark.parametrize("day", NO_DAYS)
@pytest.mark.parametrize("name", ["make_result_partition", "drop_result_partition"])
def test_what_is_no_day_of_results_is_refused(session: Session, name: str, day: str) -> None:
    before = partitions.partition_days(session)
    with pytest.raises(DataError, match=r"give a day") as refused:
        session.execute(text(f"SELECT {name}(CAST({day} AS date))"))
    assert getattr(refused.value.orig, "sqlstate", None) == "22023"
    session.rollback()
    assert partitions.partition_days(session) == before


@pytest.mark.changes_schema
def test_nothing_that_a_caller_made_takes_the_place_of_what_the_functions_use(session: Session) -> None:
    """Found first by the caller's path: a table, a function and an operator of the same names."""
    for statement in (
        "CREATE SCHEMA mine",
        "CREATE TABLE mine.result (id int)",
        "CREATE TABLE mine.pg_inherits (inhrelid oid, inhparent oid, inhdetachpending bool)",
        "CREATE FUNCTION mine.to_char(date, text) RETURNS text LANGUAGE sql AS $$ SELECT 'tenant' $$",
        "CREATE TEMP TABLE result (id int)",
        "SET LOCAL search_path = mine, pg_temp, public, pg_catalog",
    ):
        session.execute(text(statement))
    for name, expected in (("make", ["result_20240228"]), ("drop", [])):
        assert session.scalar(text(f"SELECT public.{name}_result_partition('2024-02-28')")) is True
        made = "SELECT relname FROM pg_catalog.pg_class WHERE relname = 'result_20240228' AND relispartition"
        assert session.scalars(text(made)).all() == expected


def test_a_batchs_day_is_the_utc_day() -> None:
    tokyo = timezone(timedelta(hours=9))
    assert partitions.batch_day(datetime(2024, 2, 29, 8, 0, tzinfo=tokyo)) == DAY


def test_only_days_are_taken_for_partitions() -> None:
    assert partitions.is_partition_name("result_20240228")
    for name in ("result", "result_2026", "result_20240228_old", "xresult_20240228"):
        assert not partitions.is_partition_name(name)
