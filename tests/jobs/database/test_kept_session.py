from __future__ import annotations

from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.database import KeptSession, connect, connections, sessions
from jobs.errors import ServiceError


def backend(session: Session) -> int:
    return int(session.execute(text("SELECT pg_backend_pid()")).scalar_one())


def test_questions_go_over_one_connection_and_leave_no_transaction_open(
    maker: sessionmaker[Session], database_url: str
) -> None:
    kept = KeptSession(maker)
    first = kept.ask(backend)
    assert kept.ask(backend) == first
    with psycopg.connect(database_url) as other:
        found = other.execute("SELECT state, query FROM pg_stat_activity WHERE pid = %s", [first]).fetchone()
    assert found == ("idle", "SELECT pg_backend_pid()")  # a transaction would have ended with COMMIT
    kept.close()


def test_each_question_sees_what_others_have_committed_since(maker: sessionmaker[Session]) -> None:
    kept, names = KeptSession(maker), text("SELECT count(*) FROM tenant")

    def num_tenants(session: Session) -> int:
        return int(session.execute(names).scalar_one())

    before = kept.ask(num_tenants)
    with maker.begin() as session:
        session.execute(text("INSERT INTO tenant (id, name) VALUES ('tenant_kept', 'kept')"))
    assert kept.ask(num_tenants) == before + 1
    kept.close()


def test_a_connection_that_was_cut_is_said_and_replaced(maker: sessionmaker[Session], database_url: str) -> None:
    kept = KeptSession(maker)
    first = kept.ask(backend)
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [first])
    with pytest.raises(ServiceError, match="cannot reach Postgres"):
        kept.ask(backend)
    assert kept.ask(backend) != first
    kept.close()


def test_after_an_error_of_a_question_the_next_one_has_a_fresh_connection(maker: sessionmaker[Session]) -> None:
    kept = KeptSession(maker)

    def fail(_session: Session) -> None:
        raise KeyError("of the question's own")

    with pytest.raises(KeyError):
        kept.ask(fail)
    assert kept.ask(backend) > 0
    kept.close()


def test_behind_a_pooler_each_question_has_our_settings(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server, assigned to each transaction, has not received them."""

    def set_up(_settings: object, _connection: object, record: Any) -> None:
        record.info["is_pooled"] = True  # as if another server had answered

    monkeypatch.setattr(connections, "_set_up", set_up)
    engine = connect(database_url, connections=1)
    kept = KeptSession(sessions(engine))

    def lock_timeout(session: Session) -> str:
        return str(session.execute(text("SHOW lock_timeout")).scalar_one())

    assert [kept.ask(lock_timeout), kept.ask(lock_timeout)] == ["5s", "5s"]
    engine.dispose()
