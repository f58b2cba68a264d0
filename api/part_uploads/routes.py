"""`/v1/uploads`: create, add parts, read, complete, cancel."""

from __future__ import annotations

from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from pydantic import AfterValidator, Field, StrictInt

from api.auth import KeyIdDep, TenantDep
from api.fields import WHOLE, ExpiresAfter, ObjectId, Storable, StrictModel
from api.multipart import FILENAME_PATTERN, MAX_FILENAME_CHARACTERS, check_filename
from api.openapi import failures
from api.part_uploads.completing import complete_upload
from api.part_uploads.receiving import PART_SCHEMA, receive_part
from api.schemas.uploads import UploadObject, UploadPartObject, UploadWithParts
from api.services import Services, ServicesDep
from api.sessions import SessionDep
from api.spending import ONE_UPLOAD
from api.uploads import PURPOSES, too_large
from jobs import files
from jobs.accounts.limits import limits_of
from jobs.database import transaction
from jobs.errors import InputError
from jobs.files import Purpose
from jobs.tables import Tenant
from jobs.telemetry.declared import UPLOAD_BYTES
from jobs.uploads import completing, records
from jobs.uploads.records import MAX_PARTS, NewPart, NewUpload

router = APIRouter(prefix="/v1/uploads", tags=["uploads"], responses=failures(401, 403, 429, 503))


def _uploaded(purpose: str) -> str:
    if purpose not in PURPOSES:
        raise ValueError(f"Allowed are {' and '.join(PURPOSES)}")
    return purpose


class CreateUploadBody(StrictModel):
    bytes: Annotated[StrictInt, Field(ge=1), WHOLE]
    """Size of the whole file."""
    filename: Annotated[
        Storable,
        Field(min_length=1, max_length=MAX_FILENAME_CHARACTERS, json_schema_extra={"pattern": FILENAME_PATTERN}),
    ]
    mime_type: Annotated[Storable, Field(max_length=255)]
    purpose: Annotated[
        str, AfterValidator(_uploaded), Field(json_schema_extra={"enum": [str(one) for one in PURPOSES]})
    ]
    expires_after: ExpiresAfter | None = None


class CompleteUploadBody(StrictModel):
    part_ids: Annotated[list[ObjectId], Field(min_length=1, max_length=MAX_PARTS)]
    """The parts in the order of the file."""
    md5: Annotated[Storable, Field(json_schema_extra={"pattern": "^[0-9a-fA-F]{32}$"})] | None = None
    """MD5 of the whole file, in hexadecimal digits."""


@router.post("", operation_id="createUpload", responses=failures(408, 413))
def create(body: CreateUploadBody, session: SessionDep, *, tenant: TenantDep, services: ServicesDep) -> UploadObject:
    """Begin a file in parts, which may come in any order and concurrently."""
    check_filename(body.filename, param="filename")
    if body.bytes > services.settings.max_file_bytes:
        raise too_large(body.bytes, services.settings.max_file_bytes, param="bytes")
    new = NewUpload(
        filename=body.filename,
        purpose=Purpose(body.purpose),
        mime_type=body.mime_type,
        size_bytes=body.bytes,
        expires_after_seconds=None if body.expires_after is None else body.expires_after.seconds,
    )
    return UploadObject.of(records.create(session, tenant.id, new, limits_of(tenant, services.settings)))


@router.get("/{upload_id}", operation_id="retrieveUpload", responses=failures(404))
def retrieve(upload_id: str, session: SessionDep, *, tenant: TenantDep) -> UploadWithParts:
    """Return an upload and its received parts, which need not be sent again."""
    upload = records.get(session, tenant.id, upload_id)
    file = None if upload.file_id is None else files.find_kept(session, tenant.id, upload.file_id)
    parts = [UploadPartObject.of(part) for part in records.parts_of(session, upload_id)]
    return UploadWithParts(**dict(UploadObject.of(upload, file)), parts=parts)


@router.post(
    "/{upload_id}/parts",
    operation_id="addUploadPart",
    responses=failures(404, 408, 413),
    openapi_extra={"requestBody": PART_SCHEMA},
    dependencies=[ONE_UPLOAD],
)
async def add_part(upload_id: str, request: Request, *, tenant: TenantDep, services: ServicesDep) -> UploadPartObject:
    """Add a part of up to 64 MiB: a multipart form with `data`."""
    async with services.session_slots:  # before the body is read; concurrent parts are counted at the end
        await run_sync(_check_part, services, tenant, upload_id)
    key = files.new_object_key(tenant.id)
    new = await receive_part(request, key, store=services.store, settings=services.settings)
    services.meters.count(UPLOAD_BYTES, by=new.size_bytes)
    try:
        async with services.session_slots:
            return await run_sync(_name_part, services, tenant, upload_id, new)
    except InputError:  # raised before the commit, unlike other failures, which may come after it
        await services.store.delete(key)
        raise


def _check_part(services: Services, tenant: Tenant, upload_id: str) -> None:
    with transaction(services.sessions) as session:
        records.check_part(session, tenant.id, upload_id, limits_of(tenant, services.settings), size_bytes=1)


def _name_part(services: Services, tenant: Tenant, upload_id: str, new: NewPart) -> UploadPartObject:
    with transaction(services.sessions) as session:
        limits = limits_of(tenant, services.settings)
        return UploadPartObject.of(records.add_part(session, tenant.id, upload_id, new, limits))


@router.post(
    "/{upload_id}/complete",
    operation_id="completeUpload",
    responses=failures(404, 408, 409, 413),
    dependencies=[ONE_UPLOAD],
)
async def complete(
    upload_id: str, body: CompleteUploadBody, *, tenant: TenantDep, services: ServicesDep
) -> UploadObject:
    """Join the parts to one file in this order; a repeated request returns the same file."""
    md5 = completing.check_md5(body.md5)
    return await complete_upload(services, tenant, upload_id, part_ids=body.part_ids, md5=md5)


@router.post("/{upload_id}/cancel", operation_id="cancelUpload", responses=failures(404))
def cancel(upload_id: str, session: SessionDep, *, tenant: TenantDep, key_id: KeyIdDep) -> UploadObject:
    """End an upload without a file; its parts are deleted and no longer count."""
    return UploadObject.of(records.cancel(session, tenant.id, upload_id, by=key_id))
