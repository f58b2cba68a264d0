"""Connections to Postgres: engine, sessions, readiness, schema upgrades, advisory locks and streamed rows.

Knows no table; queries live in the modules of the things they concern.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from select import POLLIN, poll
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, Result, TextClause, create_engine, event, func, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    InternalError,
    InvalidatePoolError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker

from jobs.errors import InputError, ServiceError

MIGRATIONS = Path(__file__).resolve().parent.parent / "migrations"

# A statement waits for a lock at most 5 s, far less than a lease, so that a flush that is blocked is tried again within
# it. Statements themselves may be long (those that make the chunks of a large batch ready are). None is compiled: a
# Postgres with LLVM does that to what looks for the next chunk once it expects it to read much, at every claim and tick
# anew, which takes far longer than to run it.
_SESSION_SETTINGS = {
    "timezone": "UTC",
    "lock_timeout": "5s",
    "client_min_messages": "warning",
    "jit": "off",
}
_IDLE_SECONDS = 300
"""A forgotten transaction holds its locks for so long at most."""
BRIEF_SECONDS = 10
"""For roles whose transactions are statements and nothing between them: one that is stopped in the middle, its machine
frozen or cut off, keeps the others of its tenant from nothing for longer, and their leases live meanwhile."""
RESTED_SECONDS = 30.0
"""A connection that has rested for so long is asked whether it lives before it is used, for what stands between may
have forgotten it in silence. To ask is a round trip; of others it is only looked whether the server has closed them."""
_ALONE_SECONDS = 5.0  # the same for a statement in no transaction, behind a pooler
# The network's share: 5 s to connect; a silent peer is noticed after 30 + 3 × 10 s.
_CONNECT_ARGS: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "application_name": "tokenmill",
}
# SQLSTATEs of a server that is going down, starting or full, or that took us for stopped in a transaction: not the
# caller's fault, worth another try.
_UNAVAILABLE_STATES = frozenset({"57P01", "57P02", "57P03", "53300", "53100", "53200", "25P03"})
_CANCELED_STATE = "57014"
# Deadlock, lock timeout, serialization failure: the transaction is rolled back, and the same one may pass next time.
_CONTENDED_STATES = frozenset({"40P01", "55P03", "40001"})
_UNDEFINED_TABLE = "42P01"


def connect(database_url: str, *, connections: int = 4, idle_seconds: int = _IDLE_SECONDS) -> Engine:
    """Return an engine for a libpq-style URL (`postgresql://` or `postgres://`); connects at the first use.

    At most `connections` are open; waiting for one ends after 10 s. Postgres ends a transaction that asks nothing for
    `idle_seconds`. Parameters in the URL win over our defaults.
    A pooler in transaction mode may stand between. Raises InputError where the URL is not one of Postgres.
    """
    url = parse_url(database_url)
    arguments = {name: value for name, value in _CONNECT_ARGS.items() if name not in url.query}
    engine = create_engine(
        url,
        connect_args=arguments,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=10,
        hide_parameters=True,  # what tenants wrote must not reach the log with an error
    )
    settings = {**_SESSION_SETTINGS, "idle_in_transaction_session_timeout": f"{idle_seconds}s"}
    own = {name: value for name, value in settings.items() if name not in str(url.query.get("options", ""))}
    event.listen(engine, "connect", partial(_set_up, own))
    event.listen(engine, "begin", partial(_begin_pooled, own))
    event.listen(engine, "checkin", _note_rest)
    event.listen(engine, "checkout", partial(_check_rested, engine))
    return engine


def _note_rest(_connection: Any, record: Any) -> None:
    record.info["rests_since"] = time.monotonic()


def _check_rested(engine: Engine, connection: Any, record: Any, _proxy: Any) -> None:
    """Raise InvalidatePoolError, which makes the pool connect anew, where a connection died while it rested."""
    since = record.info.get("rests_since")
    if since is None:
        return
    try:
        if time.monotonic() - since >= RESTED_SECONDS or _has_heard(connection):
            engine.dialect.do_ping(connection)
    except psycopg.Error as error:
        raise InvalidatePoolError from error


def _has_heard(connection: Any) -> bool:
    """Tell whether something has come since the last answer, as it does from a server that ends."""
    arrivals = poll()
    arrivals.register(connection.fileno(), POLLIN)
    return bool(arrivals.poll(0))


def _set_up(settings: Mapping[str, str], connection: Any, record: Any) -> None:
    """Set a new connection up: not by `options` of the start packet, which PgBouncer refuses.

    A pooler gives each transaction another server, and a process id of its own to cancel by: what is set once is gone
    with the next transaction, and so are prepared statements.
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
    """Return the SQLAlchemy URL with our driver. Raises InputError saying which form is expected."""
    try:
        url = make_url(database_url)
    except ArgumentError:
        raise InputError(_wrong_url("it cannot be parsed")) from None
    if url.get_backend_name() not in {"postgresql", "postgres"}:
        raise InputError(_wrong_url(f"it names {url.drivername}, and only Postgres is supported"))
    return url.set(drivername="postgresql+psycopg")


def sessions(engine: Engine) -> sessionmaker[Session]:
    """Return the factory of sessions; rows stay readable after the edge's commit."""
    return sessionmaker(engine, expire_on_commit=False)


@contextmanager
def transaction(maker: sessionmaker[Session]) -> Iterator[Session]:
    """Run one request or task: commit at the end, roll back on any error.

    A connection that cannot be made or breaks, and a deadlock, become ServiceError: the same call may be tried again.
    """
    with reported_as_service_error(maker.kw["bind"].url), maker.begin() as session:
        yield session


@contextmanager
def autocommit(maker: sessionmaker[Session]) -> Iterator[Session]:
    """Run statements that Postgres allows in no transaction, each a transaction of its own."""
    with reported_as_service_error(maker.kw["bind"].url), open_autocommit(maker) as session:
        yield session


def open_autocommit(maker: sessionmaker[Session]) -> Session:
    """Return a session as in `autocommit`, which its caller closes; its errors are as they come."""
    return Session(maker.kw["bind"].execution_options(isolation_level="AUTOCOMMIT"))


def run_alone(session: Session, statement: TextClause) -> None:
    """Run a statement that Postgres allows in no transaction and that may wait for a lock. Raises ServiceError.

    Behind a pooler it runs on a server that nobody has told of our lock timeout, as there is no transaction to tell it
    in: so it is cancelled from here.
    """
    connection = session.connection()
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    timer = threading.Timer(_ALONE_SECONDS, driver.cancel_safe)
    if connection.info["is_pooled"]:
        timer.start()
    try:
        session.execute(statement)
    except OperationalError as error:
        if _sqlstate(error) != _CANCELED_STATE:
            raise
        raise ServiceError(f"Postgres gave up a statement that waits for others{_cause(error)}; retry") from error
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()  # what it cancels must not be the next one


@contextmanager
def reported_as_service_error(url: URL) -> Iterator[None]:
    """Turn a Postgres that is away, overloaded, contended or lacks a table into ServiceError; other errors pass."""
    try:
        yield
    except PoolTimeoutError:
        raise ServiceError(
            f"every connection to Postgres at {_address(url)} is in use; try again, or run more API processes"
        ) from None
    except (OperationalError, InterfaceError, InternalError) as error:
        if _sqlstate(error) in _CONTENDED_STATES:
            raise ServiceError(f"Postgres gave up this transaction to let others pass{_cause(error)}; retry") from error
        if not is_connection_problem(error):
            raise
        raise ServiceError(_unreachable(url, error)) from error
    except ProgrammingError as error:
        if _sqlstate(error) != _UNDEFINED_TABLE:
            raise
        raise ServiceError(
            f"the database at {_address(url)} lacks a table of this version{_cause(error)}. "
            "Run `tokenmill db upgrade`, or name another database in TOKENMILL_DATABASE_URL."
        ) from error


def is_connection_problem(error: DBAPIError) -> bool:
    """Tell whether the server is away, restarting or full, as against a statement that failed."""
    state = _sqlstate(error)
    return error.connection_invalidated or state is None or state in _UNAVAILABLE_STATES


def is_ready(engine: Engine) -> bool:
    """Tell whether Postgres answers and this code runs on its schema."""
    try:
        with engine.connect() as connection:
            found = connection.execute(_SCHEMA).one_or_none()
    except (DBAPIError, PoolTimeoutError):
        return False
    return found is not None and runs_on(found.version_num, oldest_code=found.oldest_code)


def runs_on(revision: str, *, oldest_code: str) -> bool:
    """Tell whether this code runs on a schema: its own, or a newer one that still has what this code uses.

    So the roles of a release go on while, and after, the next one's schema is made.
    """
    return oldest_code <= head_revision() <= revision


def wait_until_ready(engine: Engine, timeout: float, *, pause: float = 0.2) -> None:
    """Wait until Postgres answers. Raises ServiceError after `timeout` seconds, with the address and the cause."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            with engine.connect() as connection:
                connection.execute(text("SELECT 1"))
            return
        except DBAPIError as error:
            if time.monotonic() >= deadline:
                raise ServiceError(_unreachable(engine.url, error)) from None
        time.sleep(pause)


def upgrade(database_url: str) -> None:
    """Bring the schema to this code's revision; safe to call from several processes at once."""
    from alembic import command  # noqa: PLC0415 - alembic is needed here only, and costs 0.1 s to import

    engine = connect(database_url)
    try:
        with reported_as_service_error(engine.url), engine.connect() as connection:
            config = _alembic_config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    finally:
        engine.dispose()


@cache
def head_revision() -> str:
    """Return the newest revision among the migration scripts, which are numbered and whose names begin with it.

    Every process that starts asks for it, and loading alembic and all scripts took 0.27 s of processor time.
    """
    return max(path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*_*.py"))


def try_advisory_lock(session: Session, key: str) -> bool:
    """Take the lock named `key` until the transaction ends; False where another holds it."""
    return bool(session.scalar(select(func.pg_try_advisory_xact_lock(func.hashtextextended(key, 0)))))


def advisory_lock(session: Session, key: str) -> None:
    """Wait for the lock named `key` and hold it until the transaction ends."""
    session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(key, 0))))


def stream(
    session: Session, query: TextClause, values: Mapping[str, object], *, num_rows: int
) -> Result[*tuple[Any, ...]]:
    """Run a query through a server-side cursor that holds `num_rows` rows at a time; the caller closes it.

    `yield_per` is called on the result: as an execution option a session ignores it for text, and reads it all.
    """
    return session.execute(query, values, execution_options={"stream_results": True}).yield_per(num_rows)


_SCHEMA = text("SELECT version_num, (SELECT revision FROM schema_floor) AS oldest_code FROM alembic_version")


def _alembic_config() -> Any:
    from alembic.config import Config  # noqa: PLC0415 - see `upgrade`

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def _sqlstate(error: DBAPIError) -> str | None:
    return getattr(error.orig, "sqlstate", None)


def _address(url: URL) -> str:
    host = url.host or url.query.get("host") or "the local socket"
    return f"{host}:{url.port or url.query.get('port') or 5432}/{url.database or ''}"


def _unreachable(url: URL, error: DBAPIError) -> str:
    where = f"cannot reach Postgres at {_address(url)}{_cause(error)}"
    return f"{where}; check TOKENMILL_DATABASE_URL and that the server runs"


def _cause(error: DBAPIError) -> str:
    lines = str(error.orig).strip().splitlines()
    return f" ({lines[0]})" if lines else ""


def _wrong_url(reason: str) -> str:
    return f"TOKENMILL_DATABASE_URL is wrong: {reason}; give postgresql://user:password@host:5432/database"
