"""Polls the batches that clients watch, once for all watchers of this process, in one transaction.

Between two polls no watcher holds a thread or a connection to Postgres.
"""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import anyio
from anyio.to_thread import run_sync
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from api.batches.responses import batch_objects
from api.schemas.batches import BatchObject
from api.services import Services
from jobs.batches import lifecycle
from jobs.database import transaction
from jobs.errors import ServiceError
from jobs.states import TERMINAL_BATCH_STATES
from jobs.tables import Batch

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
HEARTBEAT_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLook:
    """The state of a batch at one poll."""

    id: str
    """Identifies the content: the same if nothing has changed."""
    content: str
    """The API object as JSON in one line."""
    has_ended: bool

    @classmethod
    def of(cls, batch: BatchObject) -> BatchLook:
        content = batch.model_dump_json()
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        return cls(id=digest, content=content, has_ended=batch.status in TERMINAL_BATCH_STATES)


@dataclass(slots=True, eq=False)
class _Watched:
    latest: BatchLook
    num_watchers: int = 0
    is_gone: bool = False
    changed: anyio.Event = field(default_factory=anyio.Event)

    def show(self, look: BatchLook | None) -> None:
        """Publish a new look to the watchers; None if the batch was deleted."""
        if look is None:
            self.is_gone = True
        elif look.id == self.latest.id:
            return
        else:
            self.latest = look
        self.changed.set()
        self.changed = anyio.Event()


class BatchLooks:
    """The looks at watched batches. Use it only on the event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._watched: dict[str, _Watched] = {}
        self._begun = anyio.Event()

    async def watch(self, batch_id: str, first: BatchLook, *, seen: str | None) -> AsyncIterator[BatchLook | None]:
        """Yield the batch whenever it has changed since the look `seen`, until it has ended or is gone.

        A slow reader gets the latest look and misses those in between. None: nothing has changed for a while.
        """
        with self._watching(batch_id, first) as watched:
            while not watched.is_gone:
                changed, look = watched.changed, watched.latest
                if look.id != seen:
                    yield look
                    seen = look.id
                elif look.has_ended:
                    return
                else:
                    is_silent = True
                    with anyio.move_on_after(HEARTBEAT_SECONDS):
                        await changed.wait()
                        is_silent = False
                    if is_silent:
                        yield None

    @contextmanager
    def _watching(self, batch_id: str, first: BatchLook) -> Iterator[_Watched]:
        watched = self._watched.setdefault(batch_id, _Watched(first))
        if not watched.latest.has_ended:
            watched.show(first)
        watched.num_watchers += 1
        self._begun.set()
        try:
            yield watched
        finally:
            watched.num_watchers -= 1
            if not watched.num_watchers:
                del self._watched[batch_id]

    async def keep_looking(self) -> None:
        """Poll until cancelled; sleep while there are no watchers."""
        while True:
            await self._begun.wait()
            if not self._watched:
                self._begun = anyio.Event()
                continue
            try:
                await self._look()
            except (ServiceError, OperationalError, InterfaceError, PoolTimeoutError) as error:
                log.warning("watched batches were not read reason=%s", error)
            except Exception:
                log.exception("watched batches were not read")  # the task must survive
            await anyio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        batch_ids = [batch_id for batch_id, watched in self._watched.items() if not watched.latest.has_ended]
        if not batch_ids:
            return
        async with self._services.session_slots:
            looks = await run_sync(partial(_looks_at, self._services, batch_ids))
        for batch_id in batch_ids:
            if batch_id in self._watched:
                self._watched[batch_id].show(looks.get(batch_id))


def _looks_at(services: Services, batch_ids: Sequence[str]) -> Mapping[str, BatchLook]:
    with transaction(services.sessions) as session:
        by_tenant: dict[str, list[Batch]] = defaultdict(list)
        for batch in lifecycle.find_batches(session, batch_ids):
            by_tenant[batch.tenant_id].append(batch)
        batches = [one for own in by_tenant.values() for one in batch_objects(session, own, services.settings)]
    return {one.id: BatchLook.of(one) for one in batches}


def look_at(services: Services, tenant_id: str, batch_id: str) -> BatchLook:
    """Read one batch of a tenant now. Raise NotFoundError."""
    with transaction(services.sessions) as session:
        batch = lifecycle.get_batch(session, tenant_id, batch_id)
        return BatchLook.of(batch_objects(session, [batch], services.settings)[0])
