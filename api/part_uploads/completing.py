"""Completes an upload: in a few separate threads, and only once, however often it is requested.

A client that has lost its answer repeats the request while the first one still runs: it waits for the same file.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import anyio
from anyio.to_thread import run_sync

from api.schemas.uploads import UploadObject
from api.services import Services
from jobs import files
from jobs.accounts.limits import limits_of
from jobs.database import transaction
from jobs.errors import FencedOutError, ServiceError
from jobs.files import NewFile
from jobs.tables import Tenant
from jobs.uploads import completing
from jobs.uploads.completing import Completion

_LOOK_SECONDS = 0.25


async def complete_upload(
    services: Services, tenant: Tenant, upload_id: str, *, part_ids: Sequence[str], md5: str | None
) -> UploadObject:
    """Return the completed upload. Raise InputError, ConflictError or ServiceError."""
    async with services.making_turn(tenant.id):
        while True:
            async with services.session_slots:
                begun = await run_sync(_begin, services, tenant, upload_id, part_ids)
            if isinstance(begun, UploadObject):
                return begun
            done = None if begun is None else await _complete(services, tenant, begun, md5=md5)
            if done is not None:
                return done
            await anyio.sleep(_LOOK_SECONDS)


async def _complete(services: Services, tenant: Tenant, claim: Completion, *, md5: str | None) -> UploadObject | None:
    """Return the upload; None if the claim was lost to another request, or the upload has ended."""
    try:
        new = await run_sync(_put_together, services, claim, md5, limiter=services.store.making_threads)
        try:
            async with services.session_slots:
                return await run_sync(_finish, services, tenant, claim, new)
        except _UnnamedError as error:
            await _delete_new(services, claim, new)
            raise error.cause from None
    except FencedOutError:
        return None
    except BaseException:
        with anyio.CancelScope(shield=True):
            await run_sync(_give_up, services, claim)
        raise


class _UnnamedError(Exception):
    """The whole file certainly has no row."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


def _begin(
    services: Services, tenant: Tenant, upload_id: str, part_ids: Sequence[str]
) -> UploadObject | Completion | None:
    with transaction(services.sessions) as session:
        begun = completing.begin(session, tenant.id, upload_id, part_ids)
        if begun is None or isinstance(begun, Completion):
            return begun
        file = None if begun.file_id is None else files.find_kept(session, tenant.id, begun.file_id)
        return UploadObject.of(begun, file)


def _put_together(services: Services, claim: Completion, md5: str | None) -> NewFile:
    storage, most = services.store.storage, services.settings.default_max_tokens
    return completing.put_together(services.sessions, storage, claim, md5=md5, default_max_tokens=most)


def _finish(services: Services, tenant: Tenant, claim: Completion, new: NewFile) -> UploadObject:
    with transaction(services.sessions) as session:
        try:
            upload = completing.finish(session, claim, new, limits_of(tenant, services.settings))
            file = files.get_file(session, tenant.id, str(upload.file_id))
        except Exception as error:
            raise _UnnamedError(error) from error
    return UploadObject.of(upload, file)


async def _delete_new(services: Services, claim: Completion, new: NewFile) -> None:
    """Delete the whole file's object, unless it is also a part."""
    if all(part.object_key != new.object_key for part in claim.parts):
        await services.store.delete(new.object_key)


def _give_up(services: Services, claim: Completion) -> None:
    with suppress(ServiceError), transaction(services.sessions) as session:  # otherwise the claim expires
        completing.give_up(session, claim)
