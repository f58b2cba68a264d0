"""`/v1/extractions/{id}/evaluation`: measures an extraction against a gold file or people's decisions."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query

from api.auth import TenantDep
from api.fields import ObjectId, StrictModel
from api.openapi import failures
from api.services import Services, ServicesDep
from api.spending import ONE_ESTIMATE
from features.documents import evaluating, lifecycle, records
from features.documents.evaluating import GoldSource
from features.documents.extraction.evaluation.evaluate import Evaluation
from features.documents.http.record_pages import ResultsQuery, records_page
from features.documents.reviewing import reviewed
from features.documents.schemas.evaluations import EvaluationObject
from jobs.database import transaction

router = APIRouter(prefix="/v1/extractions/{extraction_id}", tags=["extractions"], responses=failures(401, 403, 429))

_RECORDS_A_LOOK = 1000


class EvaluationQuery(StrictModel):
    gold_file_id: ObjectId | None = None
    """A file of lines `{"document": name, "fields": {…}}`; without it people's decisions are the gold."""


@router.get(
    "/evaluation",
    operation_id="evaluateExtraction",
    responses=failures(404, 409, 410, 413, 503),
    dependencies=[ONE_ESTIMATE],
)
async def evaluate(
    extraction_id: str, *, tenant: TenantDep, services: ServicesDep, query: Annotated[EvaluationQuery, Query()]
) -> EvaluationObject:
    """Measure a completed extraction, overall and for each field. The result is not stored."""
    evaluation = await evaluated(services, tenant.id, extraction_id, query.gold_file_id)
    return EvaluationObject.of(extraction_id, query.gold_file_id, evaluation)


async def evaluated(services: Services, tenant_id: str, extraction_id: str, gold_file_id: str | None) -> Evaluation:
    """Return the evaluation. The caller limits how many are computed at once."""
    async with services.session_slots:
        source = await run_sync(_find, services, tenant_id, extraction_id, gold_file_id)
    storage, threads = services.store.storage, services.store.estimate_threads
    if source.gold_key is None:
        content = await _decided(services, tenant_id, extraction_id)
    else:
        content = await run_sync(evaluating.read_file, storage, source.gold_key, limiter=threads)
    return await run_sync(partial(evaluating.measure, storage, source, content), limiter=threads)


def _find(services: Services, tenant_id: str, extraction_id: str, gold_file_id: str | None) -> GoldSource:
    with transaction(services.sessions) as session:
        extraction = lifecycle.EXTRACTIONS.get(session, tenant_id, extraction_id)
        return evaluating.find(session, extraction, gold_file_id)


async def _decided(services: Services, tenant_id: str, extraction_id: str) -> bytes:
    """Return people's decisions as lines of gold."""
    lines, after, has_more = bytearray(), 0, True
    while has_more:
        query = ResultsQuery(after=after, limit=_RECORDS_A_LOOK)
        find, amend = records.records_file, reviewed.gold
        page = await records_page(services, tenant_id, extraction_id, query, find=find, amend=amend)
        lines += page.content
        after, has_more = page.after, page.has_more
    return bytes(lines)
