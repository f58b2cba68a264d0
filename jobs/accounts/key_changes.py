"""Listen for changes of keys and tenants: triggers on the two tables send notifications."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import psycopg

from jobs.database.connections import parse_url
from jobs.errors import ServiceError

CHANNEL = "tokenmill_keys"
_CONNECT_SECONDS = 5


async def changes(database_url: str) -> AsyncIterator[None]:
    """Yield once when listening starts, since earlier changes were missed, and after each committed change.

    Raises ServiceError when the connection fails. Behind a pooler in transaction mode notifications may never arrive,
    without an error.
    """
    url = parse_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        connection = await psycopg.AsyncConnection.connect(
            url, autocommit=True, connect_timeout=_CONNECT_SECONDS, application_name="tokenmill keys"
        )
        try:
            await connection.execute(f"LISTEN {CHANNEL}")
            yield
            while True:
                async with aclosing(connection.notifies(timeout=0)) as notifications:
                    async for _ in notifications:
                        yield
                await _arrival(connection)
        finally:
            await connection.close()  # at once; the connection's own exit would wait for a rollback first
    except psycopg.Error as error:
        raise ServiceError(str(error).splitlines()[0]) from None


async def _arrival(connection: psycopg.AsyncConnection) -> None:
    """Wait until the server sends something or closes. psycopg's own wait wakes ten times a second, at rest too."""
    loop, has_arrived = asyncio.get_running_loop(), asyncio.Event()
    descriptor = connection.fileno()
    loop.add_reader(descriptor, has_arrived.set)
    try:
        await has_arrived.wait()
    finally:
        loop.remove_reader(descriptor)
