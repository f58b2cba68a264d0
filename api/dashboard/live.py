"""Pages that are open: one look a second for all who have the same page before them, and what of it has changed.

Between two looks nobody holds a thread or a connection to Postgres.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import anyio
from anyio.to_thread import run_sync
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session
from starlette.responses import StreamingResponse

from api.services import Services
from jobs.database import transaction
from jobs.errors import InputError, ServiceError

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
HEARTBEAT_SECONDS = 15.0
MAX_SECONDS = 600.0
"""Then the browser connects again, with its cookie: one whose key has ended sees no more."""

Shown = str | tuple[str, str]
"""What stands at one place of a page: a text, or a text and its tone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A page as it was at one moment."""

    values: Mapping[str, Shown]
    """What changes in place, by the name of its place."""
    layout: str = ""
    """Names which rows the page has: where it has others, the browser asks for the page anew."""

    @classmethod
    def of(cls, values: Mapping[str, Shown], *rows: Hashable) -> Look:
        """Return a look whose layout is that of these rows."""
        return cls(values=values, layout=hashlib.sha256(repr(rows).encode()).hexdigest()[:12])

    def since(self, before: Look | None) -> str | None:
        """Return as JSON what is new since a look; None where nothing is."""
        if before is None:
            changed = dict(self.values)
        else:
            changed = {name: shown for name, shown in self.values.items() if before.values.get(name) != shown}
            if not changed and self.layout == before.layout:
                return None
        return json.dumps({"layout": self.layout, "values": changed}, separators=(",", ":"), ensure_ascii=False)


Looking = Callable[[Session], Look]


@dataclass(slots=True, eq=False)
class _Open:
    looking: Looking
    latest: Look | None = None
    num_viewers: int = 0
    looked: anyio.Event = field(default_factory=anyio.Event)


class OpenPages:
    """For use on the event loop alone. `key` names a page and whose it is: equal keys must mean equal looks."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._open: dict[Hashable, _Open] = {}
        self._begun = anyio.Event()

    async def watch(self, key: Hashable, looking: Looking) -> AsyncIterator[str | None]:
        """Yield what has changed, whenever something has; None: nothing has for a while."""
        with self._viewing(key, looking) as page:
            seen: Look | None = None
            quiet_since = anyio.current_time()
            while True:
                latest, looked = page.latest, page.looked
                told = None if latest is None or latest is seen else latest.since(seen)
                if told is not None or anyio.current_time() - quiet_since >= HEARTBEAT_SECONDS:
                    quiet_since = anyio.current_time()
                    yield told
                seen = latest or seen
                await looked.wait()

    @contextmanager
    def _viewing(self, key: Hashable, looking: Looking) -> Iterator[_Open]:
        page = self._open.setdefault(key, _Open(looking))
        page.num_viewers += 1
        self._begun.set()
        try:
            yield page
        finally:
            page.num_viewers -= 1
            if not page.num_viewers:
                del self._open[key]

    async def keep_looking(self) -> None:
        """Look for as long as this runs; while no page is open it sleeps."""
        while True:
            await self._begun.wait()
            if not self._open:
                self._begun = anyio.Event()
                continue
            for key, page in list(self._open.items()):
                await self._look(key, page)
            await anyio.sleep(LOOK_SECONDS)

    async def _look(self, key: Hashable, page: _Open) -> None:
        try:
            async with self._services.session_slots:
                page.latest = await run_sync(partial(_look_once, self._services, page.looking))
        except (ServiceError, OperationalError, InterfaceError, PoolTimeoutError) as error:
            log.warning("an open page was not looked at page=%s reason=%s", key, error)
        except InputError:  # what it shows is gone: the browser finds out when it asks again
            page.latest = Look(values={}, layout="gone")
        except Exception:
            log.exception("an open page was not looked at page=%s", key)  # the task must live on
        page.looked.set()
        page.looked = anyio.Event()


def _look_once(services: Services, looking: Looking) -> Look:
    with transaction(services.sessions) as session:
        return looking(session)


def stream(pages: OpenPages, key: Hashable, looking: Looking) -> StreamingResponse:
    """Answer a page's changes as server-sent events."""
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_written(pages.watch(key, looking)), media_type="text/event-stream", headers=headers)


async def _written(changes: AsyncIterator[str | None]) -> AsyncIterator[str]:
    yield "retry: 2000\n\n"
    end = anyio.current_time() + MAX_SECONDS
    async for told in changes:
        yield ": nothing has changed\n\n" if told is None else f"data: {told}\n\n"
        if anyio.current_time() >= end:
            return
