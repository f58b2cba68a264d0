"""What endpoints and pages do to read lines: a short transaction, then the store, in threads of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from sqlalchemy.orm import Session

from api.services import Services
from features.lines.http.threads import threads_of
from features.lines.opening import open_lines
from features.lines.reader import FoundLine, LineReader
from features.lines.requests import NoRequest, RequestPlace, find_place, read_request
from features.lines.stored import StoredLines
from jobs.batches import lifecycle
from jobs.database import transaction
from jobs.errors import NotFoundError
from jobs.tables import Batch

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLines:
    """The lines of one batch, ready to be read."""

    batch_status: str
    """Before anything is read."""
    reader: LineReader


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeLine:
    """One line beside its request."""

    line: FoundLine
    request: bytes | NoRequest


async def opened(services: Services, tenant_id: str, batch_id: str) -> OpenedLines:
    """Return a tenant's batch's lines; an index that is missing is made. Raises NotFoundError, GoneError, ServiceError.

    The index of a batch of an earlier release, or of a restored one, takes as long as a search of its files.
    """
    async with services.session_slots:
        lines = await run_sync(_open, services, tenant_id, batch_id)
    await _make_ready(services, tenant_id, lines)
    return lines


async def _make_ready(services: Services, tenant_id: str, lines: OpenedLines) -> None:
    reader = lines.reader
    if isinstance(reader, StoredLines) and not await run_sync(reader.load, limiter=threads_of(services).pages):
        async with services.making_turn(tenant_id):
            await run_sync(_make_index, reader, limiter=services.store.making_threads)


async def read(services: Services, lines: OpenedLines, call: Callable[[], T], *, limiter: CapacityLimiter) -> T:
    """Run one call of a reader in a thread of `limiter`, with a connection if it takes one."""
    if not lines.reader.needs_database:
        return await run_sync(call, limiter=limiter)
    async with limiter, services.session_slots:  # in this order: what waits for a thread holds no connection
        return await run_sync(call, limiter=CapacityLimiter(1))  # its own, as this task holds `limiter` already


async def read_one(services: Services, tenant_id: str, batch_id: str, line_no: int) -> WholeLine:
    """Return one line beside its request. Raises NotFoundError also where it has no result."""
    async with services.session_slots:
        lines, place = await run_sync(_open_one, services, tenant_id, batch_id, line_no)
    await _make_ready(services, tenant_id, lines)
    limiter = threads_of(services).pages
    line = await read(services, lines, lambda: lines.reader.find(line_no), limiter=limiter)
    if line is None:
        raise NotFoundError(
            f"Line {line_no + 1} of batch {batch_id!r} has no result: the batch is {lines.batch_status}.",
            param="number",
            code="no_result",
        )
    if place is None:
        return WholeLine(line=line, request="deleted")
    request = await run_sync(read_request, services.store.storage, place, line_no, limiter=limiter)
    return WholeLine(line=line, request=request)


def _open(services: Services, tenant_id: str, batch_id: str) -> OpenedLines:
    with transaction(services.sessions) as session:
        return _lines_of(services, session, lifecycle.get_batch(session, tenant_id, batch_id))


def _open_one(
    services: Services, tenant_id: str, batch_id: str, line_no: int
) -> tuple[OpenedLines, RequestPlace | None]:
    with transaction(services.sessions) as session:
        batch = lifecycle.get_batch(session, tenant_id, batch_id)
        return _lines_of(services, session, batch), find_place(session, batch, line_no)


def _lines_of(services: Services, session: Session, batch: Batch) -> OpenedLines:
    reader = open_lines(session, services.sessions, services.store.storage, batch)
    return OpenedLines(batch_status=batch.state, reader=reader)


def _make_index(reader: StoredLines) -> None:
    if not reader.load():  # another request may have made it while this one waited
        reader.make_index()
