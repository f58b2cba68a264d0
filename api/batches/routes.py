"""`/v1/batches`: read, list, cancel and delete batches, and read finished lines while one runs."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Query, Response
from pydantic import AfterValidator, Field, WithJsonSchema

from api.auth import KeyIdDep, TenantDep
from api.batches.responses import batch_object, batch_objects
from api.fields import PageQuery, Storable, StrictModel, storable
from api.openapi import failures, lines_of
from api.schemas.batches import BatchObject, BatchPage, DeletedBatch, ResultLine
from api.services import ServicesDep
from api.sessions import SessionDep
from api.spending import ONE_DOWNLOAD
from jobs.batches import deletion, lifecycle
from jobs.batches.results import read_finished_lines
from jobs.batches.submission import MAX_NAME
from jobs.overview.finding import Wanted
from jobs.states import BatchState

MAX_RESULTS_PAGE = 10_000

router = APIRouter(prefix="/v1/batches", tags=["batches"], responses=failures(401, 403, 429, 503))


_STATES = "|".join(BatchState)
_PAIR = r"^[^=\n\x00]+=[^\n\x00]*$"


_MOST = 10**9
Cost = Annotated[
    Decimal,
    Field(ge=0, lt=_MOST),
    WithJsonSchema({"type": "number", "minimum": 0, "exclusiveMaximum": _MOST}),
]


class BatchesQuery(PageQuery):
    """Which batches of the tenant to list; a batch meets all of these."""

    name: Annotated[Storable, Field(max_length=MAX_NAME)] | None = None
    """Part of its name, or of its input file's if it has none; capitals do not matter."""
    status: Annotated[str, Field(pattern=f"^({_STATES})(,({_STATES}))*$", max_length=200)] | None = None
    """One or several, separated by commas."""
    metadata: Annotated[str, Field(pattern=_PAIR, max_length=600), AfterValidator(storable)] | None = None
    """A pair that it has, as `key=value`."""
    created_from: Annotated[int, Field(ge=0, lt=2**33)] | None = None
    created_before: Annotated[int, Field(ge=0, lt=2**33)] | None = None
    cost_from: Cost | None = None
    """In units of the currency, like `cost_below`."""
    cost_below: Cost | None = None

    def wanted(self) -> Wanted:
        """Return the filter."""
        key, _, value = (self.metadata or "").partition("=")
        return Wanted(
            name=self.name,
            states=tuple(map(BatchState, self.status.split(","))) if self.status else (),
            metadata={key: value} if key else {},
            created_from=self.created_from,
            created_before=self.created_before,
            cost_from=self.cost_from,
            cost_below=self.cost_below,
        )


class ResultsQuery(StrictModel):
    after: Annotated[int, Field(ge=0, lt=2**62)] = 0
    limit: Annotated[int, Field(ge=1, le=MAX_RESULTS_PAGE)] = 1000


@router.get("", operation_id="listBatches")
def list_page(
    session: SessionDep, *, tenant: TenantDep, services: ServicesDep, query: Annotated[BatchesQuery, Query()]
) -> BatchPage:
    wanted = query.wanted().conditions()
    page = lifecycle.list_batches(session, tenant.id, wanted=wanted, after=query.after, limit=query.limit)
    return BatchPage.of(batch_objects(session, page.data, services.settings), has_more=page.has_more)


@router.get("/{batch_id}", operation_id="retrieveBatch", responses=failures(404))
def retrieve(batch_id: str, session: SessionDep, *, tenant: TenantDep, services: ServicesDep) -> BatchObject:
    return batch_object(session, lifecycle.get_batch(session, tenant.id, batch_id), services.settings)


@router.post("/{batch_id}/cancel", operation_id="cancelBatch", responses=failures(404, 409))
def cancel(batch_id: str, session: SessionDep, *, tenant: TenantDep, services: ServicesDep) -> BatchObject:
    return batch_object(session, lifecycle.cancel_batch(session, tenant.id, batch_id), services.settings)


@router.delete("/{batch_id}", operation_id="deleteBatch", responses=failures(404, 409))
def delete(
    batch_id: str,
    session: SessionDep,
    *,
    tenant: TenantDep,
    key_id: KeyIdDep,
    services: ServicesDep,
    after_commit: BackgroundTasks,
) -> DeletedBatch:
    """Delete a batch that has ended, with its results, output and error file; its input file stays.

    Billed usage stays on the bill.
    """
    for key in deletion.delete_batch(session, tenant.id, batch_id, by=key_id):
        after_commit.add_task(services.store.delete, key)
    return DeletedBatch(id=batch_id)


_RESULTS = lines_of(
    ResultLine,
    {
        "x-next-after": "The `after` of the next page.",
        "x-has-more": "`true` if the next page already has lines, else `false`.",
        "x-batch-status": "The status of the batch before the page was read.",
    },
)


@router.get(
    "/{batch_id}/results",
    operation_id="listResults",
    response_class=Response,
    responses={200: _RESULTS, **failures(404, 410)},
    dependencies=[ONE_DOWNLOAD],
)
def results(
    batch_id: str, session: SessionDep, *, tenant: TenantDep, query: Annotated[ResultsQuery, Query()]
) -> Response:
    """Return finished lines as NDJSON, in order of arrival, while the batch runs and afterwards.

    `x-next-after` is the `after` of the next page, `x-has-more` tells whether there already is one, and
    `x-batch-status` is the batch's state before the page was read: if it had ended and there is no more, you have read
    everything.
    """
    batch = lifecycle.get_batch(session, tenant.id, batch_id)
    status = batch.state
    page = read_finished_lines(session, batch, after=query.after, limit=query.limit)
    headers = {
        "x-next-after": str(page.after),
        "x-has-more": "true" if page.has_more else "false",
        "x-batch-status": str(status),
    }
    return Response(page.content, media_type="application/x-ndjson", headers=headers)
