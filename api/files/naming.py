"""Creates the row of an object that a request has written; an object that gets no row is deleted again."""

from __future__ import annotations

from anyio.to_thread import run_sync

from api.schemas.files import FileObject
from api.services import Services
from jobs import file_room, files
from jobs.accounts.limits import limits_of
from jobs.database import transaction
from jobs.files import NewFile
from jobs.tables import Tenant


class _UnnamedError(Exception):
    """The object certainly has no row."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


async def name_object(services: Services, tenant: Tenant, new: NewFile) -> FileObject:
    """Create the row of an object. If that fails, delete the object; if only the commit fails, keep it.

    After a lost connection the commit may have happened, and an object without a row is better than the reverse.
    Raise TooLargeError if the tenant's storage is full.
    """
    try:
        async with services.session_slots:
            return await run_sync(_name, services, tenant, new)
    except _UnnamedError as error:
        await services.store.delete(new.object_key)
        raise error.cause from None


def _name(services: Services, tenant: Tenant, new: NewFile) -> FileObject:
    with transaction(services.sessions) as session:
        try:
            limits = limits_of(tenant, services.settings)
            file_room.hold_room(session, tenant.id)
            file_room.check_room(session, tenant.id, limits, size_bytes=new.size_bytes)
            file = files.create_file(session, tenant.id, new)
        except Exception as error:
            raise _UnnamedError(error) from error
    return FileObject.of(file)
