"""Complete an upload: beside the event loop, in few threads of its own, and once however often it is asked for.

A client that has lost its answer asks again while the first call still works: the second waits for that one's file.
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
    """Return the completed upload. Raises InputError, ConflictError, ServiceError."""
    async with services.making_turn(tenant.id):
        while True:
            async with services.session_slots:
                found = await run_sync(_begin, services, tenant, upload_id, part_ids)
            if isinstance(found, UploadObject):
                return found
            done = None if found is None else await _complete(services, tenant, found, md5=md5)
            if done is not None:
                return done
            await anyio.sleep(_LOOK_SECONDS)


async def _complete(services: Services, tenant: Tenant, found: Completion, *, md5: str | None) -> UploadObject | None:
    """Return None where the claim was lost: another is at it, or the upload has ended."""
    try:
        new = await run_sync(_put_together, services, found, md5, limiter=services.store.making_threads)
        try:
            async with services.session_slots:
                return await run_sync(_finish, services, tenant, found, new)
        except _UnnamedError as error:
            await _delete_new(services, found, new)
            raise error.cause from None
    except FencedOutError:
        return None
    except BaseException:
        with anyio.CancelScope(shield=True):
            await run_sync(_give_up, services, found)
        raise


class _UnnamedError(Exception):
    """The whole file has no row, for sure."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


def _begin(
    services: Services, tenant: Tenant, upload_id: str, part_ids: Sequence[str]
) -> UploadObject | Completion | None:
    with transaction(services.sessions) as session:
        found = completing.begin(session, tenant.id, upload_id, part_ids)
        if found is None or isinstance(found, Completion):
            return found
        file = None if found.file_id is None else files.find_kept(session, tenant.id, found.file_id)
        return UploadObject.of(found, file)


def _put_together(services: Services, found: Completion, md5: str | None) -> NewFile:
    storage, most = services.store.storage, services.settings.default_max_tokens
    return completing.put_together(services.sessions, storage, found, md5=md5, default_max_tokens=most)


def _finish(services: Services, tenant: Tenant, found: Completion, new: NewFile) -> UploadObject:
    with transaction(services.sessions) as session:
        try:
            upload = completing.finish(session, found, new, limits_of(tenant, services.settings))
            file = files.get_file(session, tenant.id, str(upload.file_id))
        except Exception as error:
            raise _UnnamedError(error) from error
    return UploadObject.of(upload, file)


async def _delete_new(services: Services, found: Completion, new: NewFile) -> None:
    """Delete the whole file's object, unless it is a part, too."""
    if all(part.object_key != new.object_key for part in found.parts):
        await services.store.delete(new.object_key)


def _give_up(services: Services, found: Completion) -> None:
    with suppress(ServiceError), transaction(services.sessions) as session:  # else the claim ends by itself
        completing.give_up(session, found)
