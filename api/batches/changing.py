"""`POST /v1/batches/{id}`: another name, and another class or window for a batch that has not ended."""

from __future__ import annotations

from fastapi import APIRouter

from api.auth import TenantDep
from api.batches.responses import batch_object
from api.fields import StrictModel
from api.openapi import failures
from api.schemas.batches import BatchObject
from api.services import ServicesDep
from api.sessions import SessionDep
from api.submission_fields import BatchName, CompletionWindow
from jobs.batches.changing import change_batch, rename
from jobs.batches.lifecycle import get_batch
from jobs.errors import InputError
from jobs.states import AskedPriority

router = APIRouter(prefix="/v1/batches", tags=["batches"], responses=failures(401, 403, 429, 503))


class ChangeBatchBody(StrictModel):
    """The fields to change; those left out stay as they are."""

    name: BatchName | None = None
    """In any state of the batch."""
    priority: AskedPriority | None = None
    completion_window: CompletionWindow | None = None
    """Counted from the batch's creation, as at its submission."""


@router.post("/{batch_id}", operation_id="changeBatch", responses=failures(404, 408, 409, 413))
def change(
    batch_id: str, body: ChangeBatchBody, *, session: SessionDep, tenant: TenantDep, services: ServicesDep
) -> BatchObject:
    """Change a batch that is validating or in progress; running lines keep the values they were started with."""
    if body == ChangeBatchBody():
        raise InputError("There is nothing to change. Give name, priority or completion_window.", code="invalid_body")
    if body.priority is not None or body.completion_window is not None:
        change_batch(session, tenant, batch_id, priority=body.priority, completion_window=body.completion_window)
    if body.name is not None:
        rename(session, tenant.id, batch_id, body.name)
    batch = get_batch(session, tenant.id, batch_id)
    return batch_object(session, batch, services.settings)
