"""Sessions: transactions, autocommit statements, advisory locks, streamed rows.

Independent of tables; queries live in the modules of their subjects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Engine, Result, TextClause, func, select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.database.failures import reported_as_service_error


def sessions(engine: Engine) -> sessionmaker[Session]:
    """Return the session factory; rows stay readable after the commit."""
    return sessionmaker(engine, expire_on_commit=False)


def clock(session: Session) -> datetime:
    """Return the start of the transaction by the database's clock."""
    now: datetime | None = session.scalar(select(func.now()))
    assert now is not None, "it always has a time"
    return now


@contextmanager
def transaction(maker: sessionmaker[Session]) -> Iterator[Session]:
    """Run one request or task: commit at the end, roll back on any error.

    Failed connections and deadlocks become ServiceError: the same call may be retried.
    """
    with reported_as_service_error(maker.kw["bind"].url), maker.begin() as session:
        yield session


@contextmanager
def autocommit(maker: sessionmaker[Session]) -> Iterator[Session]:
    """Run statements that Postgres does not allow in a transaction, each in its own."""
    with reported_as_service_error(maker.kw["bind"].url), open_autocommit(maker) as session:
        yield session


def open_autocommit(maker: sessionmaker[Session]) -> Session:
    """Return a session as in `autocommit`, which the caller closes; its errors are not translated."""
    return Session(maker.kw["bind"].execution_options(isolation_level="AUTOCOMMIT"))


def try_advisory_lock(session: Session, key: str) -> bool:
    """Take the lock named `key` until the transaction ends; False where another holds it."""
    return bool(session.scalar(select(func.pg_try_advisory_xact_lock(func.hashtextextended(key, 0)))))


def advisory_lock(session: Session, *keys: str) -> None:
    """Wait for the locks named `keys`, one after the other, and hold them until the transaction ends."""
    session.execute(_locks(len(keys)), {f"key_{number}": key for number, key in enumerate(keys)})


@cache
def _locks(number: int) -> TextClause:
    calls = (f"pg_advisory_xact_lock(hashtextextended(:key_{each}, 0))" for each in range(number))
    return text(f"SELECT {', '.join(calls)}")


def stream(
    session: Session, query: TextClause, values: Mapping[str, object], *, num_rows: int
) -> Result[*tuple[Any, ...]]:
    """Run a query through a server-side cursor that holds `num_rows` rows at a time; the caller closes it.

    `yield_per` is called on the result: as an execution option a session ignores it for text, and reads all rows.
    """
    return session.execute(query, values, execution_options={"stream_results": True}).yield_per(num_rows)
