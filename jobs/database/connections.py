"""Connections to Postgres: their settings, the pool, and the check before reuse.

Independent of transactions and tables.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from select import POLLIN, poll
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, InvalidatePoolError

from jobs.errors import InputError

# A statement waits at most 5 s for a lock, far less than a lease, so that a blocked flush is retried within it.
# Statements themselves may be long (e.g. making the chunks of a large batch ready). JIT is off: Postgres with LLVM
# would compile the query for the next chunk whenever it expects it to read much, at every claim and tick, which takes
# far longer than running it.
_SESSION_SETTINGS = {
    "timezone": "UTC",
    "lock_timeout": "5s",
    "client_min_messages": "warning",
    "jit": "off",
}
_IDLE_SECONDS = 300
"""Longest time that a forgotten transaction holds its locks."""
BRIEF_SECONDS = 10
"""For roles whose transactions are statements with nothing between them: if one stops midway, its machine frozen or cut
off, it blocks others of its tenant for no longer, and their leases survive."""
RESTED_SECONDS = 30.0
"""A connection idle for this long is tested before it is used, as a middlebox may have dropped it silently. A test is a
round trip; other connections are only checked for a close by the server."""
# TCP settings: 5 s to connect; a silent peer is noticed after 30 + 3 × 10 s.
_CONNECT_ARGS: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "application_name": "tokenmill",
}


def connect(database_url: str, *, connections: int = 4, idle_seconds: int = _IDLE_SECONDS) -> Engine:
    """Return an engine for a libpq-style URL (`postgresql://` or `postgres://`); connects at the first use.

    At most `connections` are open; waiting for one ends after 10 s. Postgres ends a transaction idle for
    `idle_seconds`. Parameters in the URL override our defaults. A pooler in transaction mode may stand between. Raises
    InputError where the URL is not a Postgres URL.
    """
    url = parse_url(database_url)
    arguments = {name: value for name, value in _CONNECT_ARGS.items() if name not in url.query}
    engine = create_engine(
        url,
        connect_args=arguments,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=10,
        hide_parameters=True,  # tenants' text must not reach the log with an error
    )
    settings = {**_SESSION_SETTINGS, "idle_in_transaction_session_timeout": f"{idle_seconds}s"}
    own = {name: value for name, value in settings.items() if name not in str(url.query.get("options", ""))}
    event.listen(engine, "connect", partial(_set_up, own))
    event.listen(engine, "connect", partial(_note_pool, engine))
    event.listen(engine, "begin", partial(_begin_pooled, own))
    event.listen(engine, "checkin", partial(_rest, engine))
    event.listen(engine, "checkout", partial(_check_rested, engine))
    return engine


def _note_pool(engine: Engine, _connection: Any, record: Any) -> None:
    record.info["pool"] = engine.pool


def _rest(engine: Engine, _connection: Any, record: Any) -> None:
    """Note since when a connection rests; close it if its engine was disposed of meanwhile, whose old pool keeps it."""
    if record.info.get("pool", engine.pool) is engine.pool:  # one that could not be connected anew has none
        record.info["rests_since"] = time.monotonic()
    else:
        record.invalidate()


def _check_rested(engine: Engine, connection: Any, record: Any, _proxy: Any) -> None:
    """Raise InvalidatePoolError, which makes the pool reconnect, where a connection died while idle."""
    since = record.info.get("rests_since")
    if since is None:
        return
    try:
        if time.monotonic() - since >= RESTED_SECONDS or _has_heard(connection):
            engine.dialect.do_ping(connection)
    except psycopg.Error as error:
        raise InvalidatePoolError from error


def _has_heard(connection: Any) -> bool:
    """Return whether data has arrived since the last answer, as from a server that closes the connection."""
    arrivals = poll()
    arrivals.register(connection.fileno(), POLLIN)
    return bool(arrivals.poll(0))


def _set_up(settings: Mapping[str, str], connection: Any, record: Any) -> None:
    """Set up a new connection; not by `options` of the start packet, which PgBouncer refuses.

    A pooler gives each transaction another server, and a process id of its own for cancels: settings are lost with the
    next transaction, and so are prepared statements.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        is_pooled = cursor.fetchone()[0] != connection.info.backend_pid
        if is_pooled:
            connection.prepare_threshold = None
        else:
            cursor.execute(_set_config(settings, is_local=False))
    connection.commit()
    record.info["is_pooled"] = is_pooled


def _begin_pooled(settings: Mapping[str, str], connection: Connection) -> None:
    if connection.info["is_pooled"]:
        connection.exec_driver_sql(_set_config(settings, is_local=True))


def _set_config(settings: Mapping[str, str], *, is_local: bool) -> str:
    return "SELECT " + ", ".join(f"set_config('{name}', '{value}', {is_local})" for name, value in settings.items())


def parse_url(database_url: str) -> URL:
    """Return the SQLAlchemy URL with our driver. Raises InputError with the expected form."""
    try:
        url = make_url(database_url)
    except ArgumentError:
        raise InputError(_wrong_url("it cannot be parsed")) from None
    if url.get_backend_name() not in {"postgresql", "postgres"}:
        raise InputError(_wrong_url(f"it names {url.drivername}, and only Postgres is supported"))
    return url.set(drivername="postgresql+psycopg")


def _wrong_url(reason: str) -> str:
    return f"TOKENMILL_DATABASE_URL is wrong: {reason}; give postgresql://user:password@host:5432/database"
