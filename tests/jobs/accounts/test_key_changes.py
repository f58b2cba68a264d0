"""Changes of keys, heard over a connection of their own."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import anyio
import psycopg
import pytest

from jobs.accounts import key_changes


def test_a_listener_that_is_cancelled_while_postgres_is_silent_leaves_no_connection_open(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections: list[psycopg.AsyncConnection] = []
    server_pids: list[int] = []
    connect = psycopg.AsyncConnection.connect

    async def connect_and_stop_the_server(*arguments: Any, **options: Any) -> psycopg.AsyncConnection:
        connections.append(await connect(*arguments, **options))
        server_pids.append(connections[0].info.backend_pid)
        os.kill(server_pids[0], signal.SIGSTOP)
        return connections[0]

    async def listen() -> None:
        async for _ in key_changes.changes(database_url):
            pass

    async def cancel_a_listener() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            while not connections:
                await anyio.sleep(0.01)
            await anyio.sleep(0.2)
            tasks.cancel_scope.cancel()

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", connect_and_stop_the_server)
    try:
        asyncio.run(cancel_a_listener())
        assert connections[0].closed
    finally:
        os.kill(server_pids[0], signal.SIGCONT)
