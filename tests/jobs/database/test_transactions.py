from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs import database
from jobs.errors import ServiceError


def test_who_is_stopped_in_a_transaction_holds_its_locks_no_longer_than_it_may_be_idle(database_url: str) -> None:
    lock = text("SELECT pg_advisory_xact_lock(1)")
    stopped, other = (database.connect(database_url, idle_seconds=seconds) for seconds in (1, 300))

    def be_stopped_for_long() -> None:
        with database.transaction(database.sessions(stopped)) as session:
            session.execute(lock)
            with database.transaction(database.sessions(other)) as waiting:
                waiting.execute(lock)  # fails after 5 s
            session.execute(text("SELECT 1"))

    with pytest.raises(ServiceError):  # as for any failure, it is retried
        be_stopped_for_long()
    stopped.dispose()
    other.dispose()


def create_and_fail(maker: sessionmaker[Session]) -> None:
    with database.transaction(maker) as session:
        session.execute(text("CREATE TABLE dropped (i int)"))
        raise ZeroDivisionError


def lose_the_connection(maker: sessionmaker[Session]) -> None:
    with database.transaction(maker) as session:
        victim = session.scalar(text("SELECT pg_backend_pid()"))
        with maker.begin() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": victim})
        session.execute(text("SELECT 1"))


@pytest.mark.changes_schema
def test_a_transaction_commits_at_the_end_and_rolls_back_on_an_error(maker: sessionmaker[Session]) -> None:
    with database.transaction(maker) as session:
        session.execute(text("CREATE TABLE kept (i int)"))
    with pytest.raises(ZeroDivisionError):
        create_and_fail(maker)
    with maker() as session:
        assert session.scalar(text("SELECT to_regclass('kept') IS NOT NULL AND to_regclass('dropped') IS NULL"))


def test_a_killed_connection_is_a_service_error(maker: sessionmaker[Session]) -> None:
    with pytest.raises(ServiceError, match="cannot reach Postgres"):
        lose_the_connection(maker)


def test_a_database_without_the_schema_is_one_sentence_that_says_what_to_run(empty_database: str) -> None:
    engine = database.connect(empty_database)
    with (
        pytest.raises(ServiceError, match=r'"tenant" does not exist.*Run `tokenmill db upgrade`'),
        database.transaction(database.sessions(engine)) as session,
    ):
        session.execute(text("SELECT 1 FROM tenant"))
    engine.dispose()


def test_a_failing_statement_is_not_called_a_service_error(maker: sessionmaker[Session]) -> None:
    from sqlalchemy.exc import ProgrammingError

    with pytest.raises(ProgrammingError), database.transaction(maker) as session:
        session.execute(text("SELECT no_such_column FROM batch"))


def test_an_advisory_lock_is_held_until_the_transaction_ends(maker: sessionmaker[Session]) -> None:
    with maker() as one, maker() as two:
        assert database.try_advisory_lock(one, "batch x")
        assert not database.try_advisory_lock(two, "batch x")
        assert database.try_advisory_lock(two, "batch y")
        one.commit()
        assert database.try_advisory_lock(two, "batch x")


@pytest.mark.changes_schema
def test_a_deadlock_or_lock_timeout_is_worth_another_try(maker: sessionmaker[Session]) -> None:
    with maker.begin() as setting_up:
        setting_up.execute(text("CREATE TABLE contended (i int)"))
    with maker.begin() as holder:
        holder.execute(text("LOCK TABLE contended"))
        with pytest.raises(ServiceError, match=r"gave up this transaction.*lock timeout.*retry"):
            wait_for_the_table(maker)


def wait_for_the_table(maker: sessionmaker[Session]) -> None:
    with database.transaction(maker) as session:
        session.execute(text("SET LOCAL lock_timeout = '10ms'"))
        session.execute(text("SELECT * FROM contended"))
