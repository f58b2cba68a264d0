"""`/v1/estimates`: the tokens, cost and time that a batch would take, from the body of its create call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends
from pydantic import Field, StrictBool
from sqlalchemy.orm import Session

from api.auth import KeyIdDep, TenantDep
from api.batches.creating import CreateBatchBody, check_source
from api.bodies import described, signed_in_body
from api.fields import Storable
from api.openapi import failures
from api.schemas.batches import BatchErrors
from api.schemas.estimates import EstimateObject
from api.schemas.wire import unix_seconds_up
from api.services import Services, ServicesDep
from api.sessions import SessionDep
from api.spending import ONE_ESTIMATE
from api.submission_fields import CompletionWindow
from jobs import served_models
from jobs.accounts import budgets
from jobs.accounts.money import PICOS_A_MICRO
from jobs.batches import estimating, exact_counts
from jobs.batches.estimating import Checked
from jobs.batches.exact_counts import NewCount
from jobs.batches.submission import CreateBatch, check_file
from jobs.call_limits import parse_window
from jobs.chunks import fleet
from jobs.counted import counted
from jobs.database import transaction
from jobs.engines import served
from jobs.engines.engine import Known
from jobs.errors import InputError, NotFoundError
from jobs.files import get_file
from jobs.lines.bodies import CHAT_ENDPOINT
from jobs.lines.endpoints import ENDPOINTS, LineKind, kind_of, require_endpoint
from jobs.lines.input_estimate import InputEstimate, InputEstimator
from jobs.settings import Settings
from jobs.states import AskedPriority, CountState, InvalidLines
from jobs.tables import File, InputCount, Tenant

router = APIRouter(prefix="/v1/estimates", tags=["batches"], responses=failures(401, 403, 429, 503))

TOKENS_BASIS = (
    "By bytes, as a submission reserves them: prompts are within ±40 % on prose and code with a large vocabulary, and "
    "up to four times as many with a small one or a script of few bytes a token; answers count with their max_tokens, "
    "the most that they may have."
)


EXACT_BASIS = (
    "Exact: a worker of the model has counted every prompt; lines that it would refuse are not included. Answers count "
    "with their max_tokens, or with the default if a line gives none, limited by the context."
)


class EstimateBody(CreateBatchBody):
    """The body of a create call; fields that have no effect here are allowed too."""

    endpoint: Annotated[Storable, Field(max_length=200, json_schema_extra={"enum": list(ENDPOINTS)})] = CHAT_ENDPOINT
    completion_window: CompletionWindow = "24h"
    exact: StrictBool = False
    """Also have a worker of the model count all lines of the file: `GET /v1/estimates/{id}` returns its counts."""


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
    """Estimate a batch at once; nothing is reserved, and nothing is stored except the request for an exact count."""
    check_source(body)
    require_endpoint(body.endpoint)
    _check_exact(body)
    async with services.session_slots:
        kinds, contexts, engines = await run_sync(_known_models, services)
    if body.requests is not None:
        content = b"\n".join(body.lines)
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
        _stored(pieces),
        endpoint=body.endpoint,
        models=[name for name, kind in kinds.items() if kind is kind_of(body.endpoint)],
        kinds=kinds,
        settings=services.settings,
        contexts=contexts,
        engines=engines,
        is_cut=is_cut,
    )
    checked = await run_sync(check, limiter=services.store.estimate_threads)
    async with services.session_slots:
        return await run_sync(partial(_answer, services, tenant, body, tokens, checked, key_id=key_id))


@router.get("/{estimate_id}", operation_id="retrieveEstimate", responses=failures(404))
def retrieve(
    estimate_id: str,
    session: SessionDep,
    *,
    tenant: TenantDep,
    key_id: KeyIdDep,
    services: ServicesDep,
) -> EstimateObject:
    """Return a worker's count: complete once `status` is `counted`; before, tokens are estimated by bytes.

    Lines that the worker would refuse fail alone; errors of validation are in the answer to the POST.
    """
    count = exact_counts.get(session, tenant.id, estimate_id)
    is_counted = count.state == CountState.COUNTED
    tokens = _counted(count) if is_counted else _estimated(exact_counts.file_of(session, count))
    submission = CreateBatch(
        input_file_id=count.input_file_id,
        endpoint=count.endpoint,
        completion_window=count.completion_window,
        priority=AskedPriority(count.priority),
        invalid_lines=InvalidLines.SKIP,
    )
    checked = Checked(
        num_lines=count.num_requests, num_invalid=count.num_invalid, listed=count.listed, model=count.model
    )
    return _described(
        session, tenant, submission, tokens, checked, key_id=key_id, count=count, settings=services.settings
    )


def _counted(count: InputCount) -> InputEstimate:
    return InputEstimate(
        num_requests=count.num_requests,
        estimated_input_tokens=count.input_tokens,
        estimated_output_tokens=count.output_tokens,
    )


def _basis_of(count: InputCount | None) -> str:
    if count is None:
        return TOKENS_BASIS
    if count.state == CountState.COUNTED:
        return EXACT_BASIS
    if count.failure is not None:
        return f"{count.failure} {TOKENS_BASIS}"
    return f"A worker has counted {counted(count.num_requests, 'line')} so far. {TOKENS_BASIS}"


def _known_models(services: Services) -> tuple[dict[str, LineKind], dict[str, int], dict[str, list[Known]]]:
    """Return for each model its kind of lines, the context of workers that serve it now, and its engines."""
    with transaction(services.sessions) as session:
        return served_models.kinds_by_name(session), fleet.contexts(session), served.by_model(session)


def _of_file(services: Services, tenant: Tenant, file_id: str) -> tuple[InputEstimate, str, int]:
    """Return the estimate of a file, its key and its size in bytes."""
    with transaction(services.sessions) as session:
        file = get_file(session, tenant.id, file_id)
        check_file(file, services.settings)
        return _estimated(file), file.object_key, file.size_bytes


def _estimated(file: File) -> InputEstimate:
    return InputEstimate(
        num_requests=file.num_requests or 0,
        estimated_input_tokens=file.estimated_input_tokens or 0,
        estimated_output_tokens=file.estimated_output_tokens or 0,
    )


def _count(content: bytes, default_max_tokens: int) -> InputEstimate:
    estimator = InputEstimator(default_max_tokens=default_max_tokens)
    estimator.feed(content)
    return estimator.finish()


def _stored(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield an object's pieces; raise a NotFoundError for the tenant if the store has lost it."""
    try:
        yield from pieces
    except NotFoundError:
        message = "The content of the input file is lost. Upload it again."
        raise NotFoundError(message, param="input_file_id") from None


def _submission(body: EstimateBody) -> CreateBatch:
    return CreateBatch(
        input_file_id=body.input_file_id or "",
        endpoint=body.endpoint,
        completion_window=body.completion_window,
        priority=body.priority,
        invalid_lines=body.invalid_lines,
        after=body.after,
    )


def _answer(
    services: Services, tenant: Tenant, body: EstimateBody, tokens: InputEstimate, checked: Checked, *, key_id: str
) -> EstimateObject:
    submission = _submission(body)
    with transaction(services.sessions) as session:
        count = _ask(session, tenant, submission, checked.model) if body.exact else None
        return _described(
            session, tenant, submission, tokens, checked, key_id=key_id, count=count, settings=services.settings
        )


def _check_exact(body: EstimateBody) -> None:
    if body.exact and body.requests is not None:
        message = "'exact' is for a file. Upload the requests, and give its id as input_file_id."
        raise InputError(message, param="exact", code="invalid_value")
    if body.exact and kind_of(body.endpoint) is not LineKind.GENERATE:
        message = f"'exact' is for endpoints that generate; {body.endpoint} is estimated by bytes. Leave it out."
        raise InputError(message, param="exact", code="invalid_value")


def _ask(session: Session, tenant: Tenant, submission: CreateBatch, model: str | None) -> InputCount:
    """Request an exact count of the input. Raise InputError if its model is unknown, and LimitError."""
    if model is None:
        message = "None of the first lines names a known model, so they cannot be counted. Correct the lines."
        raise InputError(message, param="exact", code="model_not_found")
    new = NewCount(
        file_id=submission.input_file_id,
        endpoint=submission.endpoint,
        model=model,
        priority=submission.priority,
        completion_window=submission.completion_window,
    )
    return exact_counts.ask(session, tenant.id, new)


def _described(
    session: Session,
    tenant: Tenant,
    submission: CreateBatch,
    tokens: InputEstimate,
    checked: Checked,
    *,
    key_id: str,
    count: InputCount | None,
    settings: Settings,
) -> EstimateObject:
    model = None if checked.model is None else served_models.known_model(session, checked.model)
    window = parse_window(submission.completion_window)
    is_exact = count is not None and count.state == CountState.COUNTED
    outcome = estimating.outcome(
        session, tenant, tokens, model=model, priority=submission.priority, window=window, is_exact=is_exact
    )
    forecast = estimating.foretell(session, tenant, submission, settings, tokens=tokens, checked=checked, key_id=key_id)
    total = tokens.estimated_input_tokens + tokens.estimated_output_tokens
    return EstimateObject(
        id=None if count is None else count.id,
        status="estimated" if count is None else CountState(count.state).value,
        counted_lines=None if count is None else count.num_requests,
        model=checked.model,
        requests=tokens.num_requests,
        input_tokens=tokens.estimated_input_tokens,
        output_tokens=tokens.estimated_output_tokens,
        reasoning_tokens_per_line=estimating.thoughts_of_a_line(session, tenant.id, checked.model or ""),
        tokens_basis=_basis_of(count),
        checked_lines=checked.num_lines,
        invalid_lines=checked.num_invalid,
        errors=BatchErrors.of(checked.listed, num_unlisted=checked.num_invalid - len(checked.listed)),
        cost_micros=-(-outcome.cost_picos // PICOS_A_MICRO),
        currency=settings.currency,
        worker_seconds=outcome.worker_seconds,
        eta=unix_seconds_up(outcome.ends_at),
        basis=outcome.basis,
        available_tokens=budgets.quota(session, tenant.id).available,
        verdict=forecast.verdict,
        reason=forecast.reason,
        fits_budget=budgets.has_room(session, tenant.id, total, key_id=key_id),
    )
