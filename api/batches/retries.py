"""`/v1/batches/{id}/retry`: runs the failed lines of a batch again as a new batch."""

from __future__ import annotations

from functools import partial

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request

from api.auth import KeyIdDep, TenantDep
from api.batches.making import make_batch
from api.batches.responses import batch_object
from api.fields import StrictModel
from api.openapi import failures
from api.schemas.batches import BatchObject
from api.services import Services, ServicesDep
from api.spending import ONE_UPLOAD, SpendingDep
from api.submission_fields import CompletionWindow, IdempotencyKey, RetryCount
from jobs.batches import lifecycle, retrying
from jobs.batches.retrying import RetrySource
from jobs.batches.submission import CreateBatch
from jobs.database import transaction
from jobs.states import AskedPriority
from jobs.tables import Tenant

router = APIRouter(prefix="/v1/batches", tags=["batches"], responses=failures(401, 403, 429, 503))


class RetryBatchBody(StrictModel):
    """The values that differ from the retried batch; all are optional, and so is the body."""

    completion_window: CompletionWindow | None = None
    priority: AskedPriority | None = None


@router.post(
    "/{batch_id}/retry",
    operation_id="retryBatch",
    responses=failures(404, 408, 409, 410, 413),
    dependencies=[ONE_UPLOAD],
)
async def retry(
    batch_id: str,
    spending: SpendingDep,
    *,
    tenant: TenantDep,
    key_id: KeyIdDep,
    services: ServicesDep,
    request: Request,
    body: RetryBatchBody | None = None,
    idempotency_key: IdempotencyKey = None,
    retry_count: RetryCount = 0,
) -> BatchObject:
    """Make a batch from the failed lines of one that has ended; lines that validation refused are left out.

    The new batch names the old one in `retry_of`; its input file, which is kept for 30 days, is yours as if you had
    uploaded it. A repeated request after a lost answer returns the batch that the first one made.
    """
    changes = body or RetryBatchBody()
    trace_context = getattr(request.state, "trace_context", None)
    begin = partial(_begin, idempotency_key=idempotency_key, trace_context=trace_context, retry_count=retry_count)
    async with services.session_slots:
        begun = await run_sync(begin, services, tenant, batch_id, changes)
    if isinstance(begun, BatchObject):
        return begun
    submission, source = begun
    lines = retrying.failed_lines(services.store.storage, source)
    filename = f"{batch_id}_retry.jsonl"
    async with services.making_turn(tenant.id):
        return await make_batch(
            services,
            tenant,
            submission,
            lines,
            filename=filename,
            key_id=key_id,
            spending=spending,
            threads=services.store.making_threads,
        )


def _begin(
    services: Services,
    tenant: Tenant,
    batch_id: str,
    changes: RetryBatchBody,
    *,
    idempotency_key: str | None,
    trace_context: str | None,
    retry_count: int,
) -> BatchObject | tuple[CreateBatch, RetrySource]:
    """Return the batch to create and the source of its lines, or the batch that an earlier request made."""
    with transaction(services.sessions) as session:
        batch = lifecycle.get_batch(session, tenant.id, batch_id)
        submission = retrying.wish(
            batch,
            completion_window=changes.completion_window,
            priority=changes.priority,
            idempotency_key=idempotency_key,
            trace_context=trace_context,
            retry_count=retry_count,
        )
        earlier = lifecycle.find_repeated(session, tenant, submission)
        if earlier is not None:
            return batch_object(session, earlier, services.settings)
        return submission, retrying.begin(session, tenant, batch, submission, services.settings)
