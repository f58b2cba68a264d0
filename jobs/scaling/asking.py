"""Ask the schema's function how many workers a model wants."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import psycopg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from jobs.errors import ConflictError, InputError, NotFoundError, ServiceError

_DOUBTS: Mapping[str | None, tuple[type[InputError], str]] = {
    "P0002": (NotFoundError, "model_not_found"),
    "55000": (ConflictError, "no_scaling_settings"),
    "TM001": (ConflictError, "work_not_measured"),
    "XX001": (ConflictError, "work_contradicts_itself"),
}
"""The function's own errors by SQLSTATE: class and code."""
_CONNECT_SECONDS = 5


def ask(session: Session, model: str) -> int:
    """Return how many workers a model wants. Raises NotFoundError or ConflictError where the function has doubts."""
    try:
        query = text("SELECT tokenmill_wanted_workers(:model)")
        return int(session.execute(query, {"model": model}).scalar_one())
    except DBAPIError as error:
        if isinstance(error.orig, psycopg.Error) and error.orig.sqlstate in _DOUBTS:
            raise _doubt(error.orig) from None
        raise


def ask_anew(database_url: str, model: str, *, seconds: float) -> int:
    """Return the same by a connection of its own, as KEDA asks: a role that may call the function is enough.

    Raises ServiceError where Postgres is away, refuses, or does not answer within `seconds`.
    """
    try:
        return asyncio.run(_ask_anew(database_url, model, seconds=seconds))
    except TimeoutError:
        raise ServiceError(f"Postgres did not answer within {seconds:g} s") from None
    except psycopg.Error as error:
        if error.sqlstate in _DOUBTS:
            raise _doubt(error) from None
        raise ServiceError(f"Postgres did not answer: {' '.join(str(error).split())}") from None


async def _ask_anew(database_url: str, model: str, *, seconds: float) -> int:
    async with asyncio.timeout(seconds):
        connection = await psycopg.AsyncConnection.connect(
            database_url, autocommit=True, connect_timeout=_CONNECT_SECONDS, application_name="tokenmill autoscale"
        )
        async with connection:
            answer = await connection.execute("SELECT tokenmill_wanted_workers(%s)", [model])
            row = await answer.fetchone()
    assert row is not None, "a call of a function has a row"
    return int(row[0])


def _doubt(error: psycopg.Error) -> InputError:
    kind, code = _DOUBTS[error.sqlstate]
    return kind(". ".join(filter(None, (error.diag.message_primary, error.diag.message_hint))), code=code)
