"""`POST /v1/extractions`: creates an extraction of a collection or an index after checking the whole request."""

from __future__ import annotations

import json
from typing import Annotated, Any

import orjson
from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends
from pydantic import Field, StrictBool, StrictInt

from api.auth import KeyIdDep, TenantDep
from api.bodies import described, signed_in_body
from api.fields import WHOLE, ExpiresAfter, ObjectId, StrictModel
from api.openapi import failures
from api.services import Services, ServicesDep
from api.spending import ONE_ESTIMATE
from api.submission_fields import CompletionWindow, IdempotencyKey, Metadata
from features.documents import lifecycle, plans
from features.documents.examples import Examples
from features.documents.extraction.course.job import Passes
from features.documents.extraction.course.stored_plan import StoredPlan
from features.documents.http.responses import extraction_object
from features.documents.lifecycle import CreateExtraction
from features.documents.schemas.extractions import ExtractionObject
from features.documents.settings import DocumentSettings
from features.retrieval.corpora import asked_index
from jobs.database import transaction
from jobs.errors import InputError, TooLargeError
from jobs.lines.body_context import MAX_TOP_K
from jobs.states import AskedPriority
from jobs.tables import Tenant

router = APIRouter(prefix="/v1/extractions", tags=["extractions"], responses=failures(401, 403, 429, 503))

_MAX_FIELDS = 1000


class CreateExtractionBody(StrictModel):
    collection_id: ObjectId | None = None
    """Ask each document of this collection. Alternatively:"""
    index_id: ObjectId | None = None
    """Ask an index of passages as if it were one document, each field of the schema separately."""
    top_k: Annotated[StrictInt, Field(ge=1, le=MAX_TOP_K), WHOLE] | None = None
    """For an index: maximum number of passages shown to a question; null: 5."""
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    """A JSON schema of the fields, see docs/extraction.md."""
    model: ObjectId
    quotes: StrictBool = True
    """Ask for the words that hold each value; otherwise the value itself is searched for."""
    logprobs: StrictBool = True
    """Ask for token log probabilities: better scores, at some 10 kB more per document."""
    again: StrictBool = True
    """Ask for doubtful fields a second time."""
    second_reading: StrictBool = False
    """Also read each document a second way: better scores, twice the tokens."""
    cover: StrictBool = False
    """Ask once more with the found values covered: shows contradictions, twice the tokens."""
    max_tokens: Annotated[StrictInt, Field(ge=16, le=1_000_000), WHOLE] | None = None
    """Maximum tokens of an answer; null: twice the length expected from the schema."""
    max_fields: Annotated[StrictInt, Field(ge=1, le=_MAX_FIELDS), WHOLE] = 25
    """Maximum number of fields per question; a larger schema is split."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Further fields of the requests, such as `top_p` or `seed`. `temperature` is 0 without one."""
    calibration: dict[str, Any] | None = None
    """Output of `tokenmill extract calibrate`, which gives scores their meaning."""
    examples: ObjectId | None = None
    """A gold file, or an extraction whose reviews are gold: prompts show up to three most similar documents."""
    parquet: StrictBool = False
    """Also write the fields as a table."""
    completion_window: CompletionWindow = "24h"
    """For all stages together."""
    priority: AskedPriority = AskedPriority.NORMAL
    output_expires_after: ExpiresAfter | None = None
    metadata: Metadata = None


@router.post(
    "",
    operation_id="createExtraction",
    responses=failures(404, 408, 409, 413),
    openapi_extra=described(CreateExtractionBody),
    dependencies=[ONE_ESTIMATE],
)
async def create(
    body: Annotated[CreateExtractionBody, Depends(signed_in_body(CreateExtractionBody))],
    *,
    tenant: TenantDep,
    key_id: KeyIdDep,
    services: ServicesDep,
    idempotency_key: IdempotencyKey = None,
) -> ExtractionObject:
    """Create an extraction of the current documents of a collection, or of an index.

    Repeating the call with its idempotency key returns the same extraction.
    """
    call = await run_sync(
        _checked, body, services.settings.of(DocumentSettings), idempotency_key, limiter=services.store.estimate_threads
    )
    async with services.session_slots:
        return await run_sync(_create, services, tenant, key_id, call)


def _checked(body: CreateExtractionBody, settings: DocumentSettings, idempotency_key: str | None) -> CreateExtraction:
    """Return the request after checking that its schema can be asked. Raises InputError."""
    _check_asked(body)
    plan = _plan(body, settings)
    plans.check(plan, parquet=body.parquet)
    expiry = body.output_expires_after
    return CreateExtraction(
        plan=plan,
        collection_id=body.collection_id,
        index_id=body.index_id,
        top_k=body.top_k,
        parquet=body.parquet,
        priority=body.priority,
        completion_window=body.completion_window,
        output_expires_after_seconds=expiry.seconds if expiry else None,
        metadata=body.metadata,
        idempotency_key=idempotency_key,
    )


def _plan(body: CreateExtractionBody, settings: DocumentSettings) -> StoredPlan:
    """Return the plan as it is stored. Raises InputError, or TooLargeError for the schema."""
    schema = _as_json(body.schema_, param="schema")
    if len(schema) > settings.max_schema_bytes:
        raise TooLargeError(
            f"The schema has {len(schema):,} bytes and {settings.max_schema_bytes:,} are allowed. Ask in several "
            "extractions.",
            param="schema",
        )
    plans.check_params(body.params, taken=("max_tokens", "logprobs"))
    params = {"temperature": 0.0, **orjson.loads(_as_json(body.params, param="params")), "logprobs": body.logprobs}
    if body.max_tokens is not None:
        params["max_tokens"] = body.max_tokens
    calibration = None if body.calibration is None else _as_json(body.calibration, param="calibration").decode()
    return StoredPlan(
        schema=schema.decode(),
        model=body.model,
        quotes=body.quotes,
        params=params,
        max_fields=body.max_fields,
        calibration=calibration,
        passes=Passes(again=body.again, second_reading=body.second_reading, cover=body.cover),
        examples_of=body.examples,
    )


def _check_asked(body: CreateExtractionBody) -> None:
    """Raise InputError unless exactly one of a collection and an index is given."""
    if (body.collection_id is None) == (body.index_id is None):
        raise InputError(
            "Give collection_id, to ask each document of a collection, or index_id, to ask an index; one of the two.",
            param="collection_id",
            code="missing_required_parameter" if body.index_id is None else "invalid_value",
        )
    of_documents = {"second_reading": body.second_reading, "cover": body.cover, "examples": body.examples}
    if body.index_id is not None and (misplaced := [name for name, value in of_documents.items() if value]):
        raise InputError(
            f"{misplaced[0]} applies to documents, not to an index; leave it out.",
            param=misplaced[0],
            code="invalid_value",
        )
    if body.top_k is not None and body.index_id is None:
        raise InputError(
            "top_k applies to an index; documents are shown whole where they fit.", param="top_k", code="invalid_value"
        )


def _as_json(value: dict[str, Any], *, param: str) -> bytes:
    """Return a value as JSON that can be stored and displayed. Raises InputError."""
    try:
        json.dumps(value, allow_nan=False)  # orjson writes NaN and infinity as null
        return orjson.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"{param} cannot be stored as JSON: {error}. Leave out numbers that are not finite, whole numbers of more "
            "than 64 bits, unpaired surrogates, and anything nested over 250 levels deep.",
            param=param,
            code="invalid_value",
        ) from None


def _create(services: Services, tenant: Tenant, key_id: str, request: CreateExtraction) -> ExtractionObject:
    if request.plan.examples_of is not None:
        with transaction(services.sessions) as session:
            earlier = lifecycle.find_earlier(session, tenant.id, request)
            if earlier is not None:
                return extraction_object(session, earlier, services.settings)
        _check_examples(services, tenant, request, request.plan.examples_of)
    with transaction(services.sessions) as session:
        created = lifecycle.create_extraction(
            session, tenant, request, services.settings.of(DocumentSettings), key_id=key_id, find_index=asked_index
        )
        return extraction_object(session, created, services.settings)


def _check_examples(services: Services, tenant: Tenant, request: CreateExtraction, source: str) -> None:
    """Raise InputError for unsuitable examples; the object store is read between transactions."""
    assert request.collection_id is not None, "an index has no examples"
    examples = Examples(
        reading=lambda: transaction(services.sessions),
        storage=services.store.storage,
        tenant_id=tenant.id,
        collection_id=request.collection_id,
        source=source,
    )
    examples.check(request.plan.job().schema)
