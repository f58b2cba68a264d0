"""The object store for requests: a bounded number of concurrent calls, none in a thread of the shared pool.

Callers hold no session, since a store may hang.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio import CapacityLimiter, Semaphore
from sqlalchemy.orm import Session, sessionmaker

from jobs.errors import ServiceError
from jobs.settings import Settings
from jobs.storage import Storage, store_marker

log = logging.getLogger(__name__)

_CALLS = 64
"""Concurrent calls, each for a piece of 1 MiB."""
_UPLOAD_THREADS = 32
"""Threads that parse and write uploads; the pool of all other endpoints has 40 more."""
_MAKING_THREADS = 4
"""Threads that make files from stored objects, which may be gigabytes: parts of an upload, lines to retry."""
_ESTIMATE_THREADS = 4
"""Threads that check the first lines of an input while its owner waits: CPU-bound, so more would be no faster."""
_PREVIEW_THREADS = 4
"""Threads that read a tenant's own store, which may hang: estimates and checks never wait for them."""
_LOOK_SECONDS = 2.0
"""Timeout after which a store is not ready; also the pause between two polls."""


class RequestStore:
    """The object store of one API process."""

    def __init__(self, settings: Settings, sessions: sessionmaker[Session]) -> None:
        self.storage = Storage.of(settings)
        self._sessions = sessions
        self.upload_threads = CapacityLimiter(_UPLOAD_THREADS)
        self.making_threads = CapacityLimiter(_MAKING_THREADS)
        self.estimate_threads = CapacityLimiter(_ESTIMATE_THREADS)
        self.preview_threads = CapacityLimiter(_PREVIEW_THREADS)
        self.is_answering = True  # the first poll sets it, before any request
        self._calls = Semaphore(_CALLS)
        self._wait_seconds = settings.storage_timeout_seconds

    async def read_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes start … end − 1. Raise NotFoundError, and ServiceError also if too many calls wait."""
        async with self._turn():
            return await self.storage.read_range_async(key, start, end)

    async def delete(self, *keys: str) -> None:
        """Delete objects that no row needs any more. The purge deletes later what is left after a failure."""
        for number, key in enumerate(keys):
            try:
                async with self._turn():
                    await self.storage.delete_async(key)
            except ServiceError as error:
                log.warning("objects could not be deleted count=%d reason=%s", len(keys) - number, error)
                return

    async def watch(self) -> None:
        """Poll the store until cancelled, so that readiness checks need not wait for it."""
        while True:
            await anyio.sleep(_LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Record whether the store answers now."""
        reason: str | None = f"silent for {_LOOK_SECONDS:g} s"
        with anyio.move_on_after(_LOOK_SECONDS):
            try:
                if self.storage.access.marker is None:
                    await anyio.to_thread.run_sync(self._bind, abandon_on_cancel=True)
                await self.storage.access.require_marker_async()
                reason = None
            except ServiceError as error:
                reason = str(error)
        if reason is not None and self.is_answering:
            log.error("object store does not answer reason=%s", reason)
        self.is_answering = reason is None

    @property
    def is_full(self) -> bool:
        """Tell whether the store has no room for writes; its objects can still be read and deleted."""
        return self.is_answering and self.storage.access.is_full

    def _bind(self) -> None:
        store_marker.bind(self._sessions, self.storage)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        try:
            with anyio.fail_after(self._wait_seconds):
                await self._calls.acquire()
        except TimeoutError:
            raise ServiceError(f"{_CALLS} calls of the object store are in progress and none ends") from None
        try:
            yield
        finally:
            self._calls.release()
