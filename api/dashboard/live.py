"""Live updates of open pages: one poll a second for all pages of a kind, and the changes for each browser.

Between two polls no page holds a thread or a connection to Postgres.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import anyio
from anyio.to_thread import run_sync
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session
from starlette.responses import StreamingResponse

from api.dashboard.recent import Recent
from api.services import Services
from jobs.database import transaction
from jobs.errors import InputError, RateLimitError, ServiceError

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
RESTS = 3
"""Minimum pause, as a multiple of the processor time of a poll: with very many pages open, polls become rarer."""
MAX_BYTES = 2000
"""Size of a message, and so of the data that a page gets per second."""
LAYOUT_LENGTH = 12
HEARTBEAT_SECONDS = 15.0
MOST_PAGES = 60
"""Different pages that a tenant, or all operators, may have open in this process: polling one delays the others."""
MOST_STREAMS = 120
"""Streams that a tenant, or all operators, may have in this process: each look is compared with what was sent."""
MAX_SECONDS = 600.0
"""Then the browser reconnects with its cookie, so that an ended session gets no more updates."""

S = TypeVar("S", bound=Hashable)
Shown = str | tuple[str, str]
"""The value at one place of a page: a text, or a text and its tone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The values of a page at one moment."""

    values: Mapping[str, Shown]
    """The values that change in place, by the name of their place."""
    layout: str = ""
    """Identifies the rows of the page: if it changes, the browser reloads the page."""

    @classmethod
    def of(cls, values: Mapping[str, Shown], *rows: Hashable) -> Look:
        """Return a look whose layout is that of these rows."""
        return cls(values=values, layout=hashlib.sha256(repr(rows).encode()).hexdigest()[:LAYOUT_LENGTH])


GONE = Look(values={}, layout="gone")
"""The page's object no longer exists: the browser sees that when it reloads."""


@dataclass(frozen=True, slots=True)
class View(Generic[S]):
    """An open page: equal views get equal looks."""

    page: str
    """Its kind."""
    subject: S
    """Everything that a look depends on, including the tenant, unless all see the same."""


Looking = Callable[[Session, Sequence[S]], Sequence[Look]]
"""Reads all open pages of a kind at once."""


def one_by_one(look: Callable[[Session, S], Look]) -> Looking[S]:
    """Return a `Looking` that reads one page at a time, for kinds with few open pages; an InputError means GONE."""

    def look_at(session: Session, subject: S) -> Look:
        try:
            return look(session, subject)
        except InputError:
            return GONE

    return lambda session, subjects: [look_at(session, subject) for subject in subjects]


class Told:
    """The values that one browser has been sent for a page; no message is longer than MAX_BYTES."""

    def __init__(self) -> None:
        self._values: dict[str, Shown] = {}  # the latest sent value is last
        self._layout: str | None = None

    def news(self, look: Look) -> str | None:
        """Return the changes of a look as JSON, as many as fit in one message; None if there are none.

        Values that were never sent come first, then those sent longest ago. The rest comes with the next look.
        """
        if self._layout not in (None, look.layout):  # the browser has the values of other rows, or reloads the page
            self._values = {}
        changed = self._changes(look.values)
        if not changed and self._layout == look.layout:
            return None
        for name, value in changed.items():
            self._values.pop(name, None)
            self._values[name] = value
        self._layout = look.layout
        return _message(look.layout, changed)

    def _changes(self, values: Mapping[str, Shown]) -> dict[str, Shown]:
        changed: dict[str, Shown] = {}
        room = MAX_BYTES - len(_message("x" * LAYOUT_LENGTH, {}))
        for name in (*(name for name in values if name not in self._values), *self._values):
            value = values.get(name)
            if value is None or self._values.get(name) == value:
                continue
            room -= len(_written_out({name: value}).encode())
            if room < 0 and changed:
                break
            changed[name] = value
        return changed


def _message(layout: str, values: Mapping[str, Shown]) -> str:
    return _written_out({"layout": layout, "values": values})


def _written_out(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@dataclass(slots=True, eq=False)
class _Open:
    looking: Looking[Any]
    latest: Look | None = None
    viewers: Counter[str | None] = field(default_factory=Counter)
    """Number of streams by tenant; None for operators."""
    looked: anyio.Event = field(default_factory=anyio.Event)


_Pages = list[tuple[View[Any], _Open]]
"""Open pages of a kind."""


class OpenPages:
    """The open pages. Use it only on the event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._open: dict[View[Any], _Open] = {}
        self._begun = anyio.Event()
        self._num_looks = 0
        self.recent = Recent(now=lambda: self._num_looks * LOOK_SECONDS)
        """A cache for polls, which run one after another. Its clock counts polls, so rarer polls also read rarely."""

    def require_room(self, view: View[Any], viewer_id: str | None) -> None:
        """Raise RateLimitError if the viewer has MOST_PAGES other pages open, or MOST_STREAMS streams."""
        theirs = {other: page.viewers[viewer_id] for other, page in self._open.items() if page.viewers[viewer_id]}
        if (view not in theirs and len(theirs) >= MOST_PAGES) or sum(theirs.values()) >= MOST_STREAMS:
            most = f"{MOST_PAGES} different pages, or {MOST_STREAMS} in all"
            raise RateLimitError(
                f"{most}, are open already; no more are allowed. Close some.",
                code="pages_exceeded",
                retry_after_seconds=HEARTBEAT_SECONDS,
            )

    async def watch(self, view: View[S], looking: Looking[S], viewer_id: str | None) -> AsyncIterator[str | None]:
        """Yield the changes of a page until it is gone; None if nothing has changed for a while."""
        with self._viewing(view, looking, viewer_id) as page:
            told = Told()
            quiet_since = anyio.current_time()
            while True:
                looked, look = page.looked, page.latest
                news = None if look is None else told.news(look)
                if news is not None or anyio.current_time() - quiet_since >= HEARTBEAT_SECONDS:
                    quiet_since = anyio.current_time()
                    yield news
                if look is GONE:
                    return
                with anyio.move_on_after(HEARTBEAT_SECONDS):
                    await looked.wait()

    @contextmanager
    def _viewing(self, view: View[S], looking: Looking[S], viewer_id: str | None) -> Iterator[_Open]:
        page = self._open.setdefault(view, _Open(looking))
        page.viewers[viewer_id] += 1
        self._begun.set()
        try:
            yield page
        finally:
            page.viewers[viewer_id] -= 1
            if not page.viewers.total():
                del self._open[view]

    async def keep_looking(self) -> None:
        """Poll until cancelled; sleep while no page is open."""
        while True:
            await self._begun.wait()
            if not self._open:
                self.recent.clear()  # polls, which are its clock, stop
                self._begun = anyio.Event()
                continue
            next_at = anyio.current_time() + LOOK_SECONDS
            spent_seconds = await self._look()
            await anyio.sleep_until(max(next_at, anyio.current_time() + spent_seconds * RESTS))

    async def _look(self) -> float:
        pages = dict(self._open)
        self._num_looks += 1
        async with self._services.session_slots:
            spent_seconds = await run_sync(_look_at_all, self._services, pages)
        self.recent.forget()
        for page in pages.values():
            page.looked.set()
            page.looked = anyio.Event()
        return spent_seconds


def _look_at_all(services: Services, pages: Mapping[View[Any], _Open]) -> float:
    """Read pages in one transaction, with a new one after a failure; return the processor time that it took.

    If the database is down, the others wait for the next poll.
    """
    began_at = time.thread_time()
    left = deque(_by_kind(pages))
    while left:
        looked_at = left.popleft()
        try:
            with transaction(services.sessions) as session:
                _look_at(session, looked_at)
                while left:
                    looked_at = left.popleft()
                    session.expunge_all()  # the next pages must read current rows
                    _look_at(session, looked_at)
        except (ServiceError, OperationalError, InterfaceError, PoolTimeoutError) as error:
            log.warning("open pages were not read kinds=%d reason=%s", len(left) + 1, error)
            break
        except Exception:
            if len(looked_at) > 1:
                left.extend([one] for one in looked_at)  # find the page that fails
            else:
                log.exception("an open page was not read page=%s", looked_at[0][0])  # the others must be read
    return time.thread_time() - began_at


def _by_kind(pages: Mapping[View[Any], _Open]) -> Iterable[_Pages]:
    kinds: dict[str, _Pages] = {}
    for view, page in pages.items():
        kinds.setdefault(view.page, []).append((view, page))
    return kinds.values()


def _look_at(session: Session, pages: _Pages) -> None:
    (_, first), *_ = pages
    looks = first.looking(session, [view.subject for view, _ in pages])
    for (_, page), look in zip(pages, looks, strict=True):
        page.latest = look


def stream(pages: OpenPages, view: View[S], looking: Looking[S], *, viewer_id: str | None) -> StreamingResponse:
    """Send a page's changes as server-sent events to a tenant or, with None, an operator. Raise RateLimitError."""
    pages.require_room(view, viewer_id)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(
        _written(pages.watch(view, looking, viewer_id)), media_type="text/event-stream", headers=headers
    )


async def _written(changes: AsyncIterator[str | None]) -> AsyncIterator[str]:
    yield "retry: 2000\n\n"
    end = anyio.current_time() + MAX_SECONDS
    async for change in changes:
        yield ": nothing has changed\n\n" if change is None else f"data: {change}\n\n"
        if anyio.current_time() >= end:
            return
