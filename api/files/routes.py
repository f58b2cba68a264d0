"""`/v1/files`: upload, list, read, delete and download files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal
from urllib.parse import quote

from anyio.to_thread import run_sync
from fastapi import APIRouter, BackgroundTasks, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from api.auth import KeyIdDep, TenantDep
from api.errors import error_response
from api.fields import ObjectId, Order, StrictModel
from api.files.naming import name_object, name_objects
from api.files.several import SEVERAL_SCHEMA, receive_several
from api.openapi import Responses, bytes_of, failures
from api.ranges import ByteRange, UnsatisfiableRangeError, parse_range
from api.schemas.files import DeletedFile, FileList, FileObject, FilePage
from api.services import Services, ServicesDep
from api.sessions import SessionDep
from api.spending import ONE_DOWNLOAD, ONE_OF_SEVERAL, ONE_UPLOAD
from api.store import RequestStore
from api.uploads import FORM_SCHEMA, receive_upload
from jobs import file_room, files
from jobs.accounts.limits import limits_of
from jobs.database import transaction
from jobs.errors import NotFoundError, ServiceError
from jobs.files import MAX_PAGE
from jobs.tables import File, Tenant
from jobs.telemetry.declared import UPLOAD_BYTES

CONTENT_PIECE_BYTES = 1024 * 1024

router = APIRouter(prefix="/v1/files", tags=["files"], responses=failures(401, 403, 429, 503))


# All that OpenAI documents: the list of a purpose that is never stored here is empty.
ListedPurpose = Literal[
    "assistants",
    "assistants_output",
    "batch",
    "batch_output",
    "evals",
    "fine-tune",
    "fine-tune-results",
    "user_data",
    "vision",
]


class ListQuery(StrictModel):
    after: ObjectId | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = MAX_PAGE
    order: Order = Order.DESC
    purpose: ListedPurpose | None = None


@router.post(
    "",
    operation_id="createFile",
    responses=failures(408, 413),
    openapi_extra={"requestBody": FORM_SCHEMA},
    dependencies=[ONE_UPLOAD],
)
async def upload(request: Request, tenant: TenantDep, *, services: ServicesDep) -> FileObject:
    """Upload a file: a multipart form with `purpose`, `file` and optional `expires_after[anchor]` and `[seconds]`."""
    async with services.session_slots:  # before the body is read; concurrent uploads are counted at the end
        await run_sync(_check_room, services, tenant)
    key = files.new_object_key(tenant.id)
    received = await receive_upload(request, key, store=services.store, settings=services.settings)
    services.meters.count(UPLOAD_BYTES, by=received.size_bytes)
    return await name_object(services, tenant, received)


@router.post(
    "/several",
    operation_id="createFiles",
    responses=failures(408, 413),
    openapi_extra={"requestBody": SEVERAL_SCHEMA},
    dependencies=[ONE_UPLOAD, ONE_OF_SEVERAL],
)
async def upload_several(request: Request, tenant: TenantDep, *, services: ServicesDep) -> FileList:
    """Upload small files in one request: a multipart form with `purpose` `user_data` and a part `files` for each.

    All are stored, or none. They are returned in the order sent.
    """
    async with services.session_slots:
        await run_sync(_check_room, services, tenant)
    received = await receive_several(
        request, lambda: files.new_object_key(tenant.id), store=services.store, settings=services.settings
    )
    services.meters.count(UPLOAD_BYTES, by=sum(each.size_bytes for each in received))
    return FileList(data=await name_objects(services, tenant, received))


def _check_room(services: Services, tenant: Tenant) -> None:
    with transaction(services.sessions) as session:
        file_room.check_room(session, tenant.id, limits_of(tenant, services.settings), size_bytes=1)


@router.get("", operation_id="listFiles")
def list_page(session: SessionDep, *, tenant: TenantDep, query: Annotated[ListQuery, Query()]) -> FilePage:
    page = files.list_files(
        session, tenant.id, after=query.after, limit=query.limit, order=query.order, purpose=query.purpose
    )
    return FilePage.of([FileObject.of(file) for file in page.data], has_more=page.has_more)


@router.get("/{file_id}", operation_id="retrieveFile", responses=failures(404))
def retrieve(file_id: str, session: SessionDep, *, tenant: TenantDep) -> FileObject:
    return FileObject.of(files.get_file(session, tenant.id, file_id))


@router.delete("/{file_id}", operation_id="deleteFile", responses=failures(404, 409))
def delete(
    file_id: str,
    session: SessionDep,
    *,
    tenant: TenantDep,
    key_id: KeyIdDep,
    services: ServicesDep,
    after_commit: BackgroundTasks,
) -> DeletedFile:
    """Mark the file as deleted; its object is deleted after the commit, as a row must never name a missing object.

    Deleting an output or error file also deletes the lines of `/v1/batches/{batch_id}/results`.
    If this process dies in between, the purge of the control worker deletes the object.
    """
    file = files.delete_file(session, tenant.id, file_id, by=key_id)
    for key in files.keys_of(file.object_key, file.purpose):
        after_commit.add_task(services.store.delete, key)
    return DeletedFile(id=file.id)


_SENT = {
    "accept-ranges": "`bytes`.",
    "content-disposition": "Names the file.",
    "content-length": "How many bytes are sent.",
    "etag": "For `If-Range`: files are immutable, so it never changes.",
}
_CONTENT: Responses = {
    200: bytes_of("The whole file.", _SENT),
    206: bytes_of("The part of the Range header.", {**_SENT, "content-range": "The range and the file's size."}),
}


@router.get(
    "/{file_id}/content",
    operation_id="downloadFile",
    response_class=Response,
    responses={**_CONTENT, **failures(404, 416)},
    dependencies=[ONE_DOWNLOAD],
)
async def content(
    file_id: str,
    tenant: TenantDep,
    *,
    services: ServicesDep,
    range_header: Annotated[str | None, Header(alias="range")] = None,
    only_if: Annotated[str | None, Header(alias="if-range")] = None,
) -> Response:
    """Stream the file, or the part of a Range header."""
    async with services.session_slots:
        file = await run_sync(_find, services, tenant.id, file_id)
    if only_if is not None and only_if != _etag(file):
        range_header = None  # the caller's part is of another object: RFC 9110 §13.1.5 requires the whole
    try:
        part = parse_range(range_header, file.size_bytes)
    except UnsatisfiableRangeError:
        return _unsatisfiable(file, str(range_header))
    return await _stream(services.store, file, part=part)


def _find(services: Services, tenant_id: str, file_id: str) -> File:
    """Look up the file in a separate transaction, so that no connection is held while the content is read."""
    with transaction(services.sessions) as session:
        return files.get_file(session, tenant_id, file_id)


def _etag(file: File) -> str:
    """Return the ETag: files are immutable, so the id identifies the content."""
    return f'"{file.id}"'


async def _stream(store: RequestStore, file: File, *, part: ByteRange | None) -> Response:
    whole = ByteRange(start=0, end=file.size_bytes)
    sent = part or whole
    headers = {
        "content-length": str(sent.size_bytes),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}",  # RFC 6266
        "accept-ranges": "bytes",
        "etag": _etag(file),
    }
    if part is not None:
        headers["content-range"] = f"bytes {part.start}-{part.end - 1}/{file.size_bytes}"
    return StreamingResponse(
        await _read(store, file, part=sent),
        status_code=200 if part is None else 206,
        headers=headers,
        media_type="application/octet-stream",
    )


async def _read(store: RequestStore, file: File, *, part: ByteRange) -> AsyncIterator[bytes]:
    """Fetch the first piece at once, so that a failing store gives 503 and not a truncated 200."""
    pieces = _pieces(store, file, part=part)
    try:
        first = await anext(pieces, b"")
    except NotFoundError as error:
        raise ServiceError(f"file {file.id} has lost its object {file.object_key}") from error
    return _chain(first, pieces)


async def _pieces(store: RequestStore, file: File, *, part: ByteRange) -> AsyncIterator[bytes]:
    """Read each piece with its own request to the store, so that a slow reader holds none and hits no time limit."""
    for start in range(part.start, part.end, CONTENT_PIECE_BYTES):
        yield await store.read_range(file.object_key, start, min(start + CONTENT_PIECE_BYTES, part.end))


async def _chain(first: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in others:
        yield piece


def _unsatisfiable(file: File, range_header: str) -> Response:
    message = f"The range {range_header[:100]!r} begins after the file's last byte; it has {file.size_bytes} bytes."
    headers = {"content-range": f"bytes */{file.size_bytes}"}
    return error_response(416, message, code="invalid_range", param="range", headers=headers)
