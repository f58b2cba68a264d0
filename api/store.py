"""The object store as requests use it: a bounded number of calls at once, none of them in a thread of the shared pool.

Knows no table and no session: whoever calls holds none, since a store may hang.
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
"""Pieces under way at once, of 1 MiB each."""
_UPLOAD_THREADS = 32
"""What parses and writes uploads; the pool of all other endpoints has 40 more."""
_MAKING_THREADS = 4
"""What makes files of what the store has, which may be gigabytes: parts of an upload, lines of a batch to retry."""
_ESTIMATE_THREADS = 4
"""What checks the first lines of an input while its owner waits, which is all CPU: more would be no faster."""
_PREVIEW_THREADS = 4
"""What reads a tenant's own store, which may be slow or hang: estimates and checks never wait for it."""
_LOOK_SECONDS = 2.0
"""A store that is silent for longer does not count as ready; also the pause between two looks."""


class RequestStore:
    """What one API process does with the object store."""

    def __init__(self, settings: Settings, sessions: sessionmaker[Session]) -> None:
        self.storage = Storage.of(settings)
        self._sessions = sessions
        self.upload_threads = CapacityLimiter(_UPLOAD_THREADS)
        self.making_threads = CapacityLimiter(_MAKING_THREADS)
        self.estimate_threads = CapacityLimiter(_ESTIMATE_THREADS)
        self.preview_threads = CapacityLimiter(_PREVIEW_THREADS)
        self.is_answering = True  # as the first look finds it, before any request
        self._calls = Semaphore(_CALLS)
        self._wait_seconds = settings.storage_timeout_seconds

    async def read_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes start … end − 1. Raises NotFoundError, and ServiceError also where too many calls wait."""
        async with self._turn():
            return await self.storage.read_range_async(key, start, end)

    async def delete(self, key: str) -> None:
        """Delete an object that no row needs any more; where that fails the purge does it later."""
        try:
            async with self._turn():
                await self.storage.delete_async(key)
        except ServiceError as error:
            log.warning("object could not be deleted object_key=%s reason=%s", key, error)

    async def watch(self) -> None:
        """Look at the store for as long as this runs, so that nobody who asks whether it answers waits for it."""
        while True:
            await anyio.sleep(_LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Note whether the store answers now."""
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
        """Tell whether the store has no room for what is written; what it has can be read and deleted."""
        return self.is_answering and self.storage.access.is_full

    def _bind(self) -> None:
        store_marker.bind(self._sessions, self.storage)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        try:
            with anyio.fail_after(self._wait_seconds):
                await self._calls.acquire()
        except TimeoutError:
            raise ServiceError(f"{_CALLS} calls of the object store are under way and none ends") from None
        try:
            yield
        finally:
            self._calls.release()
