"""`/v1/batches/{id}/lines`: pages of lines, one line beside its request, and a search."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import anyio
from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Path, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from api.auth import TenantDep
from api.fields import Storable, StrictModel
from api.openapi import failures, lines_of
from api.schemas.errors import ErrorObject
from api.services import Services, ServicesDep
from api.spending import ONE_LISTING
from features.lines.http.access import OpenedLines, WholeLine, opened, read, read_one
from features.lines.http.threads import threads_of
from features.lines.reader import LineFilter
from features.lines.schemas import LineList, LineObject, SearchProgress, SearchRow, WholeLineObject
from features.lines.searching import Hits, search
from jobs.errors import GoneError, ServiceError

MAX_NUMBER = 2**31
MAX_LIMIT = 200
MAX_HITS = 10_000
MAX_SECONDS = 600.0
"""Then the client must authenticate again, so that a revoked key stops reading."""
_PROGRESS_SECONDS = 0.5

router = APIRouter(prefix="/v1/batches", tags=["batches"], responses=failures(401, 403, 404, 410, 429, 503))


class LinesQuery(StrictModel):
    """Which lines: those that meet all of these."""

    after: Annotated[int, Field(ge=0, lt=MAX_NUMBER)] = 0
    """The number of the last line before these."""
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 50
    failed: bool | None = None
    """Only failed lines, or only the others."""
    code: Annotated[Storable, Field(min_length=1, max_length=200)] | None = None
    """Only lines with this error code."""
    status: Annotated[int, Field(ge=100, le=599)] | None = None
    """Only lines whose response has this status code."""

    def wanted(self) -> LineFilter:
        """Return the filter."""
        return LineFilter(is_error=self.failed, code=self.code, status_code=self.status)


class SearchQuery(LinesQuery):
    """The text to find, and in which lines."""

    text: Annotated[Storable, Field(min_length=1, max_length=1000)]
    limit: Annotated[int, Field(ge=1, le=MAX_HITS)] = 1000
    """Maximum number of hits."""


async def hold_search(services: ServicesDep, tenant: TenantDep) -> AsyncIterator[None]:
    """Hold the tenant's search of this process until the answer is sent or its reader disconnects."""
    with services.in_flight.hold(tenant.id, "searches", allowed=1):
        yield


@router.get("/{batch_id}/lines", operation_id="listLines", dependencies=[ONE_LISTING])
async def list_page(
    batch_id: str, *, tenant: TenantDep, services: ServicesDep, query: Annotated[LinesQuery, Query()]
) -> LineList:
    """Return lines that have a result, in the order of the input, while the batch runs and afterwards.

    A page of a running batch has the results so far, and lines before it may get theirs later.
    """
    lines = await opened(services, tenant.id, batch_id)
    call = partial(lines.reader.page, query.wanted(), first_line=query.after, limit=query.limit)
    page = await read(services, lines, call, limiter=threads_of(services).pages)
    return await run_sync(LineList.of, page, lines, limiter=threads_of(services).pages)


@router.get(
    "/{batch_id}/lines/grep",
    operation_id="searchLines",
    response_class=Response,
    responses={200: lines_of(SearchRow, {"cache-control": "`no-store`."})},
    dependencies=[Depends(hold_search)],
)
async def grep(
    batch_id: str, *, tenant: TenantDep, services: ServicesDep, query: Annotated[SearchQuery, Query()]
) -> Response:
    """Send the lines whose custom_id, answer or error contains a text, as they are found; capitals matter.

    A row of progress comes now and then. The last row is one that `has_ended`, or an error; to cancel, disconnect.
    """
    lines = await opened(services, tenant.id, batch_id)
    parts = search(lines.reader, query.text, query.wanted(), first_line=query.after, limit=query.limit)
    first = await _next(services, lines, parts)  # a store that is away gives 503, and not a broken 200
    rows = _rows(services, lines, parts, first=first, after=query.after)
    return StreamingResponse(rows, media_type="application/x-ndjson", headers={"cache-control": "no-store"})


@router.get(
    "/{batch_id}/lines/{number}",
    operation_id="retrieveLine",
    response_model=WholeLineObject,
    dependencies=[ONE_LISTING],
)
async def retrieve(
    batch_id: str,
    number: Annotated[int, Path(ge=1, lt=MAX_NUMBER)],
    *,
    tenant: TenantDep,
    services: ServicesDep,
) -> Response:
    """Return one line with its whole result, beside its request."""
    whole = await read_one(services, tenant.id, batch_id, number - 1)
    content = await run_sync(_written, whole, limiter=threads_of(services).pages)
    return Response(content, media_type="application/json")


def _written(whole: WholeLine) -> str:
    """Return the body of one line, made in a thread: it may have megabytes."""
    return WholeLineObject.of_whole(whole).model_dump_json()


@dataclass(frozen=True, slots=True)
class _Part:
    """The next part of a search, and its rows."""

    hits: Hits
    rows: str


async def _next(services: Services, lines: OpenedLines, parts: Iterator[Hits]) -> _Part | None:
    return await read(services, lines, partial(_part, parts), limiter=threads_of(services).searches)


def _part(parts: Iterator[Hits]) -> _Part | None:
    """Search on, in a thread: a part may have thousands of hits."""
    hits = next(parts, None)
    return None if hits is None else _Part(hits, "".join(_row(SearchRow(hit=LineObject.of(one))) for one in hits.lines))


async def _rows(
    services: Services, lines: OpenedLines, parts: Iterator[Hits], *, first: _Part | None, after: int
) -> AsyncIterator[str]:
    part, last = first, Hits(lines=(), next_line=after, num_bytes=0, has_more=False)
    began_at = shown_at = anyio.current_time()
    is_late = False
    try:
        while part is not None and not is_late:
            if part.rows:
                yield part.rows
            last, now = part.hits, anyio.current_time()
            is_late = now - began_at > MAX_SECONDS
            if now - shown_at > _PROGRESS_SECONDS:
                shown_at = now
                yield _row(SearchRow(progress=SearchProgress.of(last)))
            part = await _next(services, lines, parts)
    except (ServiceError, GoneError) as error:
        yield _row(SearchRow(error=_error_of(error)))
        return
    yield _row(SearchRow(progress=SearchProgress.of(last, has_ended=True, is_cut=part is not None)))


def _error_of(error: ServiceError | GoneError) -> ErrorObject:
    """Return what ends a search: a batch that has ended meanwhile may have been deleted."""
    if isinstance(error, GoneError):
        return ErrorObject(message=error.message, type="invalid_request_error", param=None, code=error.code)
    message = "The object store or the database does not answer. Continue with `after` of the last progress."
    return ErrorObject(message=message, type="server_error", param=None, code=ServiceError.code)


def _row(row: SearchRow) -> str:
    return row.model_dump_json() + "\n"
