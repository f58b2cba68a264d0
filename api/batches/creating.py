"""`POST /v1/batches`: creates a batch from an uploaded file, or from requests in the body."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Self

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Request
from pydantic import BeforeValidator, ConfigDict, Field, PrivateAttr, StrictBool, WithJsonSchema

from api.auth import KeyIdDep, TenantDep
from api.batches.making import make_batch
from api.batches.responses import batch_object
from api.bodies import described, signed_in_body
from api.fields import ExpiresAfter, ObjectId, Storable, StrictModel
from api.openapi import failures
from api.schemas.batches import BatchObject
from api.services import Services, ServicesDep
from api.spending import Spending, SpendingDep
from api.submission_fields import BatchName, CompletionWindow, IdempotencyKey, Metadata, RetryCount
from jobs.batches import inline_lines, lifecycle
from jobs.batches.inline_lines import MAX_LINES
from jobs.batches.submission import CreateBatch
from jobs.database import transaction
from jobs.errors import InputError, TooLargeError
from jobs.lines.endpoints import ENDPOINTS
from jobs.states import AskedPriority, EngineChoice, InvalidLines, UncoveredLines
from jobs.tables import Tenant

router = APIRouter(prefix="/v1/batches", tags=["batches"], responses=failures(401, 403, 429, 503))

REQUESTS_SCHEMA = {"type": ["array", "null"], "items": {"type": "object"}, "minItems": 1, "maxItems": MAX_LINES}


def _few_requests(value: object) -> object:
    """Refuse too many requests before they are parsed."""
    if isinstance(value, list) and len(value) > MAX_LINES:
        raise TooLargeError(
            f"You give {len(value):,} requests and {MAX_LINES:,} are allowed in a create call. Write them into a file, "
            "upload it, and give its id as input_file_id.",
            param="requests",
            code="too_many_tasks",
        )
    return value


Requests = Annotated[
    Annotated[list[dict[str, Any]], Field(min_length=1)] | None,
    BeforeValidator(_few_requests),
    WithJsonSchema(REQUESTS_SCHEMA),
]


class CreateBatchBody(StrictModel):
    """The official fields, then ours; the official client sends ours through `extra_body`."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["input_file_id"]}, {"required": ["requests"]}]},
    )

    input_file_id: ObjectId | None = None
    endpoint: Annotated[Storable, Field(max_length=200, json_schema_extra={"enum": list(ENDPOINTS)})]
    completion_window: CompletionWindow
    metadata: Metadata = None
    output_expires_after: ExpiresAfter | None = None
    name: BatchName | None = None
    """What lists show, not unique; without it they show the name of the input file."""
    priority: AskedPriority = AskedPriority.NORMAL
    invalid_lines: InvalidLines = InvalidLines.FAIL
    uncovered_lines: UncoveredLines = UncoveredLines.WAIT
    """What to do with lines that the tenant's token budget does not cover when their turn comes."""
    engine: EngineChoice = EngineChoice.SAME
    """`same`: the kind of engine that gives the first answer gives all; `any`: each line may have another."""
    reproducible: StrictBool = False
    """Run the batch only where the same line has the same bits: on our own engine, in one data type."""
    after: ObjectId | None = None
    """The id of the batch that has to be completed before this one starts."""
    input_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """Hash of the file, with an `Idempotency-Key`: the repeated request may then name another file of equal content."""
    requests: Requests = None
    """Lines in place of a file. Defaults: `custom_id` is `request-1` …, `method` is `POST`, `url` the endpoint."""
    _lines: list[bytes] = PrivateAttr(default_factory=list)

    @property
    def lines(self) -> list[bytes]:
        """The requests as lines, once the body is prepared."""
        return self._lines

    def prepared(self) -> Self:
        """Return a copy with lines in place of its requests, which is quick to pass on."""
        if self.requests is None:
            return self
        made = self.model_copy(update={"requests": []})
        if self.input_file_id is None:
            made._lines = inline_lines.lines_of(self.requests, endpoint=self.endpoint)
        return made


@router.post(
    "",
    operation_id="createBatch",
    responses=failures(404, 408, 409, 413, 429),
    openapi_extra=described(CreateBatchBody),
)
async def create(
    body: Annotated[CreateBatchBody, Depends(signed_in_body(CreateBatchBody))],
    spending: SpendingDep,
    *,
    tenant: TenantDep,
    key_id: KeyIdDep,
    services: ServicesDep,
    request: Request,
    idempotency_key: IdempotencyKey = None,
    retry_count: RetryCount = 0,
) -> BatchObject:
    """Accept a batch; a repeated request after a lost answer returns the batch that the first one made."""
    check_source(body)
    if body.input_sha256 is not None and (idempotency_key is None or body.requests is not None):
        raise InputError(
            "input_sha256 identifies the request of an Idempotency-Key. Give it with that header and an input_file_id, "
            "or leave it out.",
            param="input_sha256",
            code="invalid_value",
        )
    expiry = body.output_expires_after
    submission = CreateBatch(
        input_file_id=body.input_file_id or "",
        endpoint=body.endpoint,
        completion_window=body.completion_window,
        name=body.name,
        metadata=body.metadata,
        output_expires_after_seconds=expiry.seconds if expiry else None,
        priority=body.priority,
        invalid_lines=body.invalid_lines,
        uncovered_lines=body.uncovered_lines,
        engine=body.engine,
        is_reproducible=body.reproducible,
        after=body.after,
        made_from=None if body.input_sha256 is None else f"sha256 {body.input_sha256}",
        idempotency_key=idempotency_key,
        trace_context=getattr(request.state, "trace_context", None),
        retry_count=retry_count,
    )
    if body.requests is not None:
        name, threads = "requests.jsonl", services.store.upload_threads
        lines = body.lines
        submission = replace(submission, made_from=await run_sync(inline_lines.digest, lines, limiter=threads))
        return await make_batch(
            services, tenant, submission, lines, filename=name, key_id=key_id, spending=spending, threads=threads
        )
    create_one = partial(_create, services, tenant, submission, key_id=key_id, spending=spending)
    async with services.session_slots:
        return await run_sync(create_one)


def check_source(body: CreateBatchBody) -> None:
    """Raise InputError unless either a file or requests are given."""
    if body.input_file_id is None and body.requests is None:
        raise InputError(
            "Missing required parameter: 'input_file_id', or 'requests' in its place.",
            param="input_file_id",
            code="missing_required_parameter",
        )
    if body.input_file_id is not None and body.requests is not None:
        raise InputError(
            "Both input_file_id and requests are given. Give the id of a file, or requests in its place.",
            param="requests",
            code="invalid_value",
        )


def _create(
    services: Services, tenant: Tenant, submission: CreateBatch, *, key_id: str, spending: Spending
) -> BatchObject:
    with transaction(services.sessions) as session:
        settings, spend = services.settings, spending.spend
        batch = lifecycle.create_batch(session, tenant, submission, settings, key_id=key_id, spend=spend)
        return batch_object(session, batch, settings)
