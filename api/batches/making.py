"""Batches whose input file the request makes: the object is written without a session, then recorded with its batch."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from api.batches.responses import batch_object
from api.schemas.batches import BatchObject
from api.services import Services
from api.spending import Spending
from jobs import files
from jobs.batches import made_inputs
from jobs.batches.submission import CreateBatch
from jobs.database import transaction
from jobs.errors import InputError
from jobs.files import NewFile
from jobs.tables import Tenant


async def make_batch(
    services: Services,
    tenant: Tenant,
    submission: CreateBatch,
    lines: Iterable[bytes],
    *,
    filename: str,
    key_id: str,
    spending: Spending,
    threads: CapacityLimiter,
) -> BatchObject:
    """Write an input file in one of `threads` and create its batch; an object without a row is deleted again."""
    key = files.new_object_key(tenant.id)
    new = await run_sync(_write, services, key, lines, filename, limiter=threads)
    submit = partial(_submit, services, tenant, submission, new, key_id=key_id, spending=spending)
    try:
        async with services.session_slots:
            answer, is_new = await run_sync(submit)
    except InputError:  # raised before the commit, unlike other failures, which may come after it
        await services.store.delete(key)
        raise
    if not is_new:
        await services.store.delete(key)
    return answer


def _write(services: Services, key: str, lines: Iterable[bytes], filename: str) -> NewFile:
    storage = services.store.storage
    return made_inputs.write_input(storage, key, lines, filename=filename, settings=services.settings)


def _submit(
    services: Services, tenant: Tenant, submission: CreateBatch, new: NewFile, *, key_id: str, spending: Spending
) -> tuple[BatchObject, bool]:
    with transaction(services.sessions) as session:
        settings, spend = services.settings, spending.spend
        made = made_inputs.submit(session, tenant, submission, new, settings, key_id=key_id, spend=spend)
        return batch_object(session, made.batch, settings), made.is_new
