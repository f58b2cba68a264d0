"""Creates the rows of objects that a request has written; objects that get no row are deleted again."""

from __future__ import annotations

from collections.abc import Sequence

from anyio.to_thread import run_sync

from api.schemas.files import FileObject
from api.services import Services
from jobs import file_room, files
from jobs.accounts.limits import limits_of
from jobs.database import transaction
from jobs.files import NewFile
from jobs.tables import Tenant


class _UnnamedError(Exception):
    """The objects certainly have no row."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


async def name_object(services: Services, tenant: Tenant, new: NewFile) -> FileObject:
    """Create the row of an object, as `name_objects` does."""
    [file] = await name_objects(services, tenant, [new])
    return file


async def name_objects(services: Services, tenant: Tenant, new: Sequence[NewFile]) -> list[FileObject]:
    """Create the rows of objects. If that fails, delete the objects; if only the commit fails, keep them.

    After a lost connection the commit may have happened, and an object without a row is better than the reverse.
    Raise TooLargeError if the tenant's storage is full.
    """
    try:
        async with services.session_slots:
            return await run_sync(_name, services, tenant, new)
    except _UnnamedError as error:
        await services.store.delete(*(each.object_key for each in new))
        raise error.cause from None


def _name(services: Services, tenant: Tenant, new: Sequence[NewFile]) -> list[FileObject]:
    with transaction(services.sessions) as session:
        try:
            limits = limits_of(tenant, services.settings)
            size_bytes = sum(each.size_bytes for each in new)
            file_room.hold_room(session, tenant.id)
            file_room.check_room(session, tenant.id, limits, size_bytes=size_bytes, num_more=len(new))
            rows = files.create_files(session, tenant.id, new)
        except Exception as error:
            raise _UnnamedError(error) from error
    return list(map(FileObject.of, rows))
