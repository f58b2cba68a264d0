from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from jobs import database
from jobs.database import connections
from jobs.errors import InputError, ServiceError


def test_only_a_connection_that_has_rested_is_asked_whether_it_lives(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = database.connect(database_url, connections=1)
    pings = _pings(engine, monkeypatch)
    first = _backend(engine)
    assert (_backend(engine), pings) == (first, [])
    monkeypatch.setattr(connections, "RESTED_SECONDS", 0.0)
    assert (_backend(engine), len(pings)) == (first, 1)
    engine.dispose()


def test_a_connection_that_the_server_has_closed_is_replaced_at_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = database.connect(database_url, connections=1)
    pings, first = _pings(engine, monkeypatch), _backend(engine)
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [first])  # and wait until it is gone
    assert _backend(engine) != first
    assert len(pings) == 1
    engine.dispose()


def test_a_connection_in_use_closes_when_it_is_given_back_after_its_engine_was_disposed_of(database_url: str) -> None:
    engine = database.connect(database_url, connections=1)
    with engine.connect() as connection:
        driver_connection: Any = connection.connection.driver_connection
        engine.dispose()
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    assert driver_connection.closed
    assert _backend(engine) == _backend(engine)
    engine.dispose()


def test_a_pooled_connection_that_cannot_be_made_anew_is_a_database_error(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = database.connect(database_url, connections=1)
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [_backend(engine)])

    def refuse(*_: object, **__: object) -> None:
        raise psycopg.OperationalError("refused")

    with monkeypatch.context() as patched:
        patched.setattr(engine.dialect, "connect", refuse)
        for _ in range(2):
            with pytest.raises(OperationalError):
                _backend(engine)
    assert _backend(engine)
    engine.dispose()


def _pings(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the connections that are pinged from now on."""
    pings, do_ping = list[object](), engine.dialect.do_ping

    def ask(connection: Any) -> bool:
        pings.append(connection)
        return do_ping(connection)

    monkeypatch.setattr(engine.dialect, "do_ping", ask)
    return pings


def _backend(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())


def test_an_unreachable_server_is_one_sentence_with_its_address() -> None:
    engine = database.connect("postgresql://user:secret@127.0.0.1:1/tokenmill")
    assert not database.is_ready(engine)
    calls: list[Callable[[], object]] = [lambda: database.wait_until_ready(engine, 0), lambda: use(engine)]
    for call in calls:
        with pytest.raises(ServiceError, match=r"cannot reach Postgres at 127\.0\.0\.1:1/tokenmill.*DATABASE_URL") as e:
            call()
        assert "secret" not in e.value.message


def use(engine: Engine) -> None:
    with database.transaction(database.sessions(engine)) as session:
        session.execute(text("SELECT 1"))


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://x/y", "sqlite:///x.db"])
def test_a_wrong_url_is_refused_with_the_right_form(url: str) -> None:
    with pytest.raises(InputError, match=r"TOKENMILL_DATABASE_URL is wrong.*postgresql://user"):
        database.connect(url)


def test_both_libpq_spellings_select_our_driver() -> None:
    for scheme in ("postgres", "postgresql", "postgresql+psycopg"):
        assert connections.parse_url(f"{scheme}://u@h/d").drivername == "postgresql+psycopg"


def test_no_statement_is_compiled(session: Session) -> None:
    assert session.scalar(text("SHOW jit")) == "off"


def test_time_is_read_as_utc(session: Session) -> None:
    assert session.scalar(text("SHOW timezone")) == "UTC"


WAITS = "SELECT current_setting('lock_timeout'), current_setting('statement_timeout'), current_setting('timezone')"


def with_options(url: str, options: str) -> str:
    return make_url(url).update_query_dict({"options": options}).render_as_string(hide_password=False)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("-c statement_timeout=7s", ("5s", "7s", "UTC")),
        ("-c lock_timeout=3s", ("3s", "0", "UTC")),
    ],
)
def test_options_in_the_url_add_to_our_timeouts_and_win_over_them(
    database_url: str, options: str, expected: tuple[str, str, str]
) -> None:
    engine = database.connect(with_options(database_url, options))
    with database.transaction(database.sessions(engine)) as session:
        assert tuple(session.execute(text(WAITS)).one()) == expected
    engine.dispose()


def test_our_timeouts_outlive_a_transaction_that_is_rolled_back(database_url: str) -> None:
    engine = database.connect(database_url, connections=1)
    for _ in range(2):
        with engine.connect() as connection:
            assert tuple(connection.execute(text(WAITS)).one()) == ("5s", "0", "UTC")
            connection.rollback()
    engine.dispose()


def test_a_process_opens_no_more_connections_than_it_may(database_url: str) -> None:
    maker = database.sessions(database.connect(database_url, connections=3))
    threads = [threading.Thread(target=use, args=(maker.kw["bind"],)) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with maker() as session:
        open_now = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        assert session.scalar(text(open_now)) == 3
    maker.kw["bind"].dispose()
