"""Sends webhooks: claims due deliveries, makes the requests, records the results. One thread with an event loop.

A slow endpoint holds neither a thread nor a connection to Postgres, and each tenant has only a few requests in flight.
A process that dies loses nothing, since claims expire.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from sqlalchemy.orm import Session, sessionmaker

from features.webhooks import deliveries
from features.webhooks.deliveries import ClaimedDelivery
from features.webhooks.meters import CONTROL, WEBHOOK_SECONDS, WEBHOOK_TRIES
from features.webhooks.payloads import signed_event
from features.webhooks.sending import Answer, Sender
from features.webhooks.settings import WebhookSettings
from jobs.database import KeptSession, transaction
from jobs.errors import FencedOutError, ServiceError
from jobs.telemetry.meters import Meters
from workers.control_work import ControlParts, ControlWork

log = logging.getLogger(__name__)

MAX_REQUESTS = 256
"""Requests in flight, of all tenants."""
MAX_OF_A_TENANT = 4
CONNECTIONS = 2
"""Postgres connections: one for polling, and one for recording."""
_DRAIN_SECONDS = 5.0  # grace for requests in flight at a stop; another worker sends the rest again
_RETRY_SECONDS = 1.0
_RECORD_TRIES = 20  # for about as long as the claim lasts

T = TypeVar("T")


class WebhookSender:
    """Owns the thread. `wake` may be called from any thread, the other methods once."""

    def __init__(
        self,
        sessions: sessionmaker[Session],
        *,
        settings: WebhookSettings,
        sender: Sender | None = None,
        meters: Meters | None = None,
    ) -> None:
        self._sessions = sessions
        self._claims = KeptSession(sessions)
        self._look_seconds = settings.claim_alone_seconds
        self._sender = sender or Sender(settings.allowed_networks)
        self._meters = meters or Meters(CONTROL)
        self._busy: Counter[str] = Counter()
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken: asyncio.Event | None = None
        self._records: asyncio.Semaphore | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="webhooks", daemon=True)

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    def wake(self) -> None:
        """Poll now."""
        loop, woken = self._loop, self._woken
        if loop is not None and woken is not None and not loop.is_closed():
            loop.call_soon_threadsafe(woken.set)

    def stop(self) -> None:
        """Claim no more, and wait briefly for requests in flight."""
        self._stop.set()
        self.wake()
        self._thread.join()
        self._claims.close()
        self._sender.close()

    async def _run(self) -> None:
        self._woken, self._records = asyncio.Event(), asyncio.Semaphore(CONNECTIONS - 1)
        self._loop = asyncio.get_running_loop()
        in_flight: set[asyncio.Task[None]] = set()
        while not self._stop.is_set():
            self._woken.clear()
            for claimed in await self._claim():
                self._busy[claimed.tenant_id] += 1
                task = asyncio.create_task(self._deliver(claimed))
                in_flight.add(task)
                task.add_done_callback(in_flight.discard)
            await self._pause()
        if in_flight:
            _, late = await asyncio.wait(in_flight, timeout=_DRAIN_SECONDS)
            for task in late:
                task.cancel()

    async def _pause(self) -> None:
        """Wait until there is room for more, or until the next poll."""
        assert self._woken is not None
        seconds = self._look_seconds * random.uniform(0.5, 1.0)
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _claim(self) -> list[ClaimedDelivery]:
        limit = MAX_REQUESTS - self._busy.total()
        if limit <= 0:
            return []
        busy = dict(self._busy)
        try:
            claim = partial(deliveries.claim, limit=limit, a_tenant=MAX_OF_A_TENANT, busy=busy)
            return await asyncio.to_thread(self._claims.ask, claim)
        except ServiceError as error:
            log.warning("looking for webhooks failed error=%s", error)
        except Exception:
            log.exception("looking for webhooks failed")  # the thread must survive: no other sends webhooks
        return []

    async def _deliver(self, claimed: ClaimedDelivery) -> None:
        try:
            await self._record(claimed, await self._send(claimed))
        except Exception:
            log.exception("webhook failed delivery_id=%s", claimed.delivery_id)
        finally:
            self._busy[claimed.tenant_id] -= 1
            self._busy += Counter()  # removes tenants without requests
            self.wake()

    async def _send(self, claimed: ClaimedDelivery) -> Answer:
        event = signed_event(
            claimed.event_id,
            claimed.event_type,
            claimed.event_data,
            event_at=claimed.event_at,
            sent_at=claimed.claimed_at,
            signing_secrets=claimed.signing_secrets,
            payload_format=claimed.payload_format,
        )
        return await self._sender.post(claimed.url, event.body, event.headers)

    async def _record(self, claimed: ClaimedDelivery, answer: Answer) -> None:
        """Record an answer; while the database is down, retry for about as long as the claim lasts."""
        assert self._records is not None
        for _ in range(_RECORD_TRIES):
            try:
                async with self._records:
                    state = await self._store(claimed, answer)
            except ServiceError as error:
                log.warning("webhook was not recorded delivery_id=%s error=%s", claimed.delivery_id, error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self._meters.observe(WEBHOOK_SECONDS, answer.milliseconds / 1000)
                self._meters.count(WEBHOOK_TRIES, state)
                log.info(
                    "webhook sent delivery_id=%s type=%s status=%s ms=%d state=%s",
                    *(claimed.delivery_id, claimed.event_type, answer.status_code, answer.milliseconds, state),
                )
                return

    async def _store(self, claimed: ClaimedDelivery, answer: Answer) -> str:
        """Record an answer and return the state; `taken` if another worker has claimed the delivery."""
        try:
            state = await self._in_transaction(lambda session: deliveries.record(session, claimed, answer))
        except FencedOutError:
            return "taken"
        return state.value

    async def _in_transaction(self, work: Callable[[Session], T]) -> T:
        def run() -> T:
            with transaction(self._sessions) as session:
                return work(session)

        return await asyncio.to_thread(run)


def _sender(parts: ControlParts) -> WebhookSender:
    return WebhookSender(parts.sessions, settings=parts.settings.of(WebhookSettings), meters=parts.meters)


WORK = ControlWork(connections=CONNECTIONS, make=_sender)
