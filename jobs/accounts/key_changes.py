"""Hear that keys or tenants have changed: triggers of the two tables notify whoever listens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import psycopg

from jobs.database.connections import parse_url
from jobs.errors import ServiceError

CHANNEL = "tokenmill_keys"
_CONNECT_SECONDS = 5


async def changes(database_url: str) -> AsyncIterator[None]:
    """Yield once it listens, since nobody has heard what came before, and after each change that was committed.

    Raises ServiceError when the connection cannot be made or breaks. Behind a pooler in transaction mode nothing may
    ever be heard, and no error says so.
    """
    url = parse_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        async with await psycopg.AsyncConnection.connect(
            url, autocommit=True, connect_timeout=_CONNECT_SECONDS, application_name="tokenmill keys"
        ) as connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            yield
            async with aclosing(connection.notifies()) as notifications:
                async for _ in notifications:
                    yield
    except psycopg.Error as error:
        raise ServiceError(str(error).splitlines()[0]) from None
