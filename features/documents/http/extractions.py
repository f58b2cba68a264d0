"""`/v1/extractions`: get, list, read, cancel and delete extractions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field

from api.auth import KeyIdDep, TenantDep
from api.fields import ObjectId, StrictModel
from api.openapi import failures, lines_of
from api.services import ServicesDep
from api.sessions import SessionDep
from api.spending import ONE_LISTING
from features.documents import deletion, lifecycle, records
from features.documents.http.record_pages import ResultsQuery, records_page, sent
from features.documents.http.responses import extraction_object, extraction_objects
from features.documents.reviewing import reviewed
from features.documents.schemas.extractions import DeletedExtraction, ExtractionObject, ExtractionPage, RecordLine

router = APIRouter(prefix="/v1/extractions", tags=["extractions"], responses=failures(401, 403, 429, 503))


class ListQuery(StrictModel):
    collection_id: ObjectId | None = None
    after: ObjectId | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20


@router.get("", operation_id="listExtractions")
def list_page(
    session: SessionDep, *, tenant: TenantDep, services: ServicesDep, query: Annotated[ListQuery, Query()]
) -> ExtractionPage:
    page = lifecycle.list_extractions(
        session, tenant.id, collection_id=query.collection_id, after=query.after, limit=query.limit
    )
    return ExtractionPage.of(extraction_objects(session, page.data, services.settings), has_more=page.has_more)


@router.get("/{extraction_id}", operation_id="retrieveExtraction", responses=failures(404))
def retrieve(extraction_id: str, session: SessionDep, *, tenant: TenantDep, services: ServicesDep) -> ExtractionObject:
    return extraction_object(session, lifecycle.EXTRACTIONS.get(session, tenant.id, extraction_id), services.settings)


_RESULTS = lines_of(
    RecordLine,
    {
        "x-next-after": "The `after` of the next page.",
        "x-has-more": "`true` where there is a next page, else `false`.",
        "x-is-final": "`true` for the records of a completed extraction; `false`: records are missing or may change.",
    },
)


@router.get(
    "/{extraction_id}/results",
    operation_id="listRecords",
    response_class=Response,
    responses={200: _RESULTS, **failures(404, 409, 410)},
    dependencies=[ONE_LISTING],
)
async def results(
    extraction_id: str, *, tenant: TenantDep, services: ServicesDep, query: Annotated[ResultsQuery, Query()]
) -> Response:
    """Return the records of an extraction as NDJSON, in the order of its documents.

    There are none before the first grounding; while documents are asked again, their records are `provisional`. A value
    that somebody has decided is the right value; its evidence has the extracted value and who decided.
    """
    find, amend = records.latest_file, reviewed.with_decisions
    page = await records_page(services, tenant.id, extraction_id, query, find=find, amend=amend)
    answer = sent(page)
    answer.headers["x-is-final"] = "true" if page.is_final else "false"
    return answer


@router.post("/{extraction_id}/cancel", operation_id="cancelExtraction", responses=failures(404, 409))
def cancel(
    extraction_id: str, session: SessionDep, *, tenant: TenantDep, key_id: KeyIdDep, services: ServicesDep
) -> ExtractionObject:
    """Cancel an extraction and the batch it waits for; finished work is billed, and there are no results."""
    extraction = lifecycle.cancel_extraction(session, tenant.id, extraction_id, reason=f"cancelled by {key_id}")
    return extraction_object(session, extraction, services.settings)


@router.delete("/{extraction_id}", operation_id="deleteExtraction", responses=failures(404, 409))
def delete(extraction_id: str, session: SessionDep, *, tenant: TenantDep, key_id: KeyIdDep) -> DeletedExtraction:
    """Delete an extraction that has ended, its files, and its batches with their results; its collection stays.

    What was billed stays billed.
    """
    deletion.delete_extraction(session, tenant.id, extraction_id, by=key_id)
    return DeletedExtraction(id=extraction_id)
