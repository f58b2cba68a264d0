"""Changes of keys, heard over a connection of their own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, TypeVarTuple

import anyio
import psycopg
import pytest

from jobs.accounts import key_changes
from jobs.errors import ServiceError

Arguments = TypeVarTuple("Arguments")
CHANGE = f"NOTIFY {key_changes.CHANNEL}"


class TimedLoop(asyncio.SelectorEventLoop):
    """Records how long each timer runs."""

    def __init__(self) -> None:
        super().__init__()
        self.delays: list[float] = []

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self.delays.append(delay)
        return super().call_later(delay, callback, *args, context=context)


class Heard:
    """What a listener has heard so far."""

    def __init__(self, database_url: str) -> None:
        self.number = 0
        self._changed = asyncio.Event()
        self._task = asyncio.ensure_future(self._listen(database_url))

    async def _listen(self, database_url: str) -> None:
        async for _ in key_changes.changes(database_url):
            self.number += 1
            self._changed.set()

    async def until(self, number: int) -> None:
        while self.number < number:
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 30)

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def failure(self) -> BaseException | None:
        await asyncio.wait([self._task], timeout=30)
        return self._task.exception()


def heard_by(database_url: str, then: Callable[[Heard], Awaitable[None]]) -> TimedLoop:
    """Start a listener, wait until it listens, and run `then`; return its loop."""
    loops: list[TimedLoop] = []

    async def listen() -> None:
        heard = Heard(database_url)
        await heard.until(1)
        await then(heard)
        await heard.end()

    def make_loop() -> TimedLoop:
        loops.append(TimedLoop())
        return loops[0]

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(listen())
    return loops[0]


def send(database_url: str, *statements: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_each_change_is_heard_alone_and_together_with_others(database_url: str) -> None:
    async def change(heard: Heard) -> None:
        send(database_url, CHANGE)
        await heard.until(2)
        send(database_url, CHANGE, CHANGE, CHANGE)
        await heard.until(5)

    heard_by(database_url, change)


def test_a_listener_at_rest_sets_no_timer(database_url: str) -> None:
    """psycopg's wait wakes ten times a second: a third of what an idle API took of a core."""

    async def rest(heard: Heard) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, TimedLoop)
        loop.delays.clear()
        send(database_url, CHANGE)
        while heard.number < 2:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)

    assert max(heard_by(database_url, rest).delays, default=0) == 0


def test_a_server_that_ends_the_connection_is_an_error(database_url: str) -> None:
    async def end(heard: Heard) -> None:
        listening = "FROM pg_stat_activity WHERE application_name = 'tokenmill keys' AND datname = current_database()"
        send(database_url, f"SELECT pg_terminate_backend(pid) {listening}")
        assert isinstance(await heard.failure(), ServiceError)

    heard_by(database_url, end)


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
