"""A proxy that can be cut or blocked: the roles' connections to Postgres and Valkey each pass through one.

Forwards bytes only, in an event loop in its own thread.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

_READ_BYTES = 64 * 1024

T = TypeVar("T")


class Proxy:
    """Listens on a port of 127.0.0.1 and connects to a unix socket. Methods may be called from any thread."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._writers: set[StreamWriter] = set()
        self._is_open, self._is_closing = asyncio.Event(), asyncio.Event()
        started: Future[tuple[asyncio.AbstractEventLoop, int]] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(started)), name="proxy", daemon=True)
        self._thread.start()
        self._loop, self.port = started.result()

    def cut(self) -> int:
        """Break every connection; return their number."""
        return self._call(self._cut())

    def block(self) -> None:
        """Forward nothing in either direction, but keep every connection, until `unblock`."""
        self._call(self._set_open(is_open=False))

    def unblock(self) -> None:
        """Resume after `block`."""
        self._call(self._set_open(is_open=True))

    def close(self) -> None:
        """Break every connection and end the thread."""
        self._loop.call_soon_threadsafe(self._is_closing.set)
        self._thread.join()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _run(self, started: Future[tuple[asyncio.AbstractEventLoop, int]]) -> None:
        self._is_open.set()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        started.set_result((asyncio.get_running_loop(), server.sockets[0].getsockname()[1]))
        await self._is_closing.wait()
        server.close()
        self._is_open.set()
        await self._cut()
        while self._writers:
            await asyncio.sleep(0)

    async def _cut(self) -> int:
        num = len(self._writers) // 2
        for writer in list(self._writers):
            writer.transport.abort()
        return num

    async def _set_open(self, *, is_open: bool) -> None:
        if is_open:
            self._is_open.set()
        else:
            self._is_open.clear()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_unix_connection(str(self._target))
        except OSError:
            writer.transport.abort()  # the server is down
            return
        both = {writer, there_writer}
        self._writers |= both
        try:
            await asyncio.gather(self._pass_on(reader, there_writer), self._pass_on(there_reader, writer))
        finally:
            self._writers -= both
            for one in both:
                one.transport.abort()

    async def _pass_on(self, reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(OSError):
            while content := await reader.read(_READ_BYTES):
                await self._is_open.wait()
                writer.write(content)
                await writer.drain()
        writer.close()
