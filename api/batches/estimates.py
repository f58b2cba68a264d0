"""`POST /v1/estimates`: what a batch would take, from what its create call would say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Annotated, Literal

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends
from pydantic import Field

from api.auth import KeyIdDep, TenantDep
from api.batches.creating import CreateBatchBody, check_source
from api.batches.fields import CompletionWindow
from api.bodies import described, signed_in_body
from api.fields import Storable
from api.openapi import failures
from api.schemas.batches import BatchErrors
from api.schemas.wire import WireModel, unix_seconds_or_none
from api.services import Services, ServicesDep
from api.spending import ONE_ESTIMATE
from jobs import served_models
from jobs.accounts import budgets
from jobs.batches import estimating, inline_lines
from jobs.batches.estimating import Checked
from jobs.batches.submission import check_file, parse_window
from jobs.chunks import fleet
from jobs.database import transaction
from jobs.errors import NotFoundError
from jobs.files import get_file
from jobs.lines.bodies import CHAT_ENDPOINT, ENDPOINTS
from jobs.lines.input_estimate import InputEstimate, InputEstimator
from jobs.tables import Tenant

router = APIRouter(prefix="/v1/estimates", tags=["batches"], responses=failures(401, 429, 503))

TOKENS_BASIS = (
    "By bytes, as a submit reserves them: prompts are within ±40 % on prose and code with a large vocabulary, and up "
    "to four times as many with a small one or a script of few bytes a token; answers count with their max_tokens, the "
    "most that they may have."
)


class EstimateBody(CreateBatchBody):
    """A create call; what has no influence here may stand in it, too."""

    endpoint: Annotated[Storable, Field(max_length=200, json_schema_extra={"enum": list(ENDPOINTS)})] = CHAT_ENDPOINT
    completion_window: CompletionWindow = "24h"


class EstimateObject(WireModel):
    object: Literal["estimate"] = "estimate"
    model: str | None
    """That of the first line that names a known one."""
    requests: int
    input_tokens: int
    output_tokens: int
    tokens_basis: str
    """How the tokens were counted, and how far off that may be."""
    checked_lines: int
    """So many of the first lines were checked as validation will check all."""
    invalid_lines: int
    """Of these."""
    errors: BatchErrors | None
    """What is wrong with them."""
    cost_micros: int
    """The most: at the model's prices of the class, with every answer as long as its max_tokens allows."""
    currency: str
    worker_seconds: float | None
    """Of one worker, at the rate that the live ones were measured at; null where none was."""
    eta: int | None
    """When it would end if it were submitted now; null where nobody knows, or in more than ten years."""
    basis: str
    """What the last two rest on."""
    available_tokens: int | None
    """What the tenant's token limit has left; null: it has none."""
    fits_budget: bool
    """Whether a submit would pass: that limit and the budgets in all have room. Others hold back lines as they run."""


@router.post(
    "",
    operation_id="createEstimate",
    responses=failures(404, 408, 413),
    openapi_extra=described(EstimateBody),
    dependencies=[ONE_ESTIMATE],
)
async def estimate(
    body: Annotated[EstimateBody, Depends(signed_in_body(EstimateBody))],
    *,
    tenant: TenantDep,
    key_id: KeyIdDep,
    services: ServicesDep,
) -> EstimateObject:
    """Say at once what a batch would take; nothing is stored and nothing reserved."""
    check_source(body)
    async with services.session_slots:
        models, contexts = await run_sync(_known_models, services)
    if body.requests is not None:
        write = partial(inline_lines.lines_of, body.requests, endpoint=body.endpoint)
        lines = await run_sync(write, limiter=services.store.estimate_threads)
        content = b"\n".join(lines)
        count = partial(_count, content, services.settings.default_max_tokens)
        tokens = await run_sync(count, limiter=services.store.estimate_threads)
        pieces: Iterable[bytes] = [content]
        is_cut = False
    else:
        async with services.session_slots:
            tokens, key, size_bytes = await run_sync(_of_file, services, tenant, str(body.input_file_id))
        pieces = services.store.storage.iter_chunks(key, end=estimating.CHECKED_BYTES)
        is_cut = size_bytes > estimating.CHECKED_BYTES
    check = partial(
        estimating.check_lines,
        _found(pieces),
        endpoint=body.endpoint,
        models=models,
        settings=services.settings,
        contexts=contexts,
        is_cut=is_cut,
    )
    checked = await run_sync(check, limiter=services.store.estimate_threads)
    async with services.session_slots:
        return await run_sync(partial(_answer, services, tenant, body, tokens, checked, key_id=key_id))


def _known_models(services: Services) -> tuple[list[str], dict[str, int]]:
    """Return the names of all models, and the contexts of those that a worker serves now."""
    with transaction(services.sessions) as session:
        return [model.name for model in served_models.offered_models(session)], fleet.contexts(session)


def _of_file(services: Services, tenant: Tenant, file_id: str) -> tuple[InputEstimate, str, int]:
    """Return what was counted of a file, its key and its size in bytes."""
    with transaction(services.sessions) as session:
        file = get_file(session, tenant.id, file_id)
        check_file(file, services.settings)
        counted = InputEstimate(
            num_requests=file.num_requests or 0,
            estimated_input_tokens=file.estimated_input_tokens or 0,
            estimated_output_tokens=file.estimated_output_tokens or 0,
        )
        return counted, file.object_key, file.size_bytes


def _count(content: bytes, default_max_tokens: int) -> InputEstimate:
    estimator = InputEstimator(default_max_tokens=default_max_tokens)
    estimator.feed(content)
    return estimator.finish()


def _found(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield an object's pieces; one that the store has lost is the tenant's to know."""
    try:
        yield from pieces
    except NotFoundError:
        message = "The content of the input file is lost. Upload it again."
        raise NotFoundError(message, param="input_file_id") from None


def _answer(
    services: Services, tenant: Tenant, body: EstimateBody, tokens: InputEstimate, checked: Checked, *, key_id: str
) -> EstimateObject:
    with transaction(services.sessions) as session:
        model = None if checked.model is None else served_models.find_model(session, checked.model)
        window = parse_window(body.completion_window)
        found = estimating.outcome(session, tenant, tokens, model=model, priority=body.priority, window=window)
        available = budgets.quota(session, tenant.id).available
        total = tokens.estimated_input_tokens + tokens.estimated_output_tokens
        fits = budgets.has_room(session, tenant.id, total, key_id=key_id)
    return EstimateObject(
        model=checked.model,
        requests=tokens.num_requests,
        input_tokens=tokens.estimated_input_tokens,
        output_tokens=tokens.estimated_output_tokens,
        tokens_basis=TOKENS_BASIS,
        checked_lines=checked.num_lines,
        invalid_lines=checked.num_invalid,
        errors=BatchErrors.of(checked.listed, num_unlisted=checked.num_invalid - len(checked.listed)),
        cost_micros=found.cost_micros,
        currency=services.settings.currency,
        worker_seconds=found.worker_seconds,
        eta=unix_seconds_or_none(found.ends_at),
        basis=found.basis,
        available_tokens=available,
        fits_budget=fits,
    )
