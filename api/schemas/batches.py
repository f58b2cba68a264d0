"""`/v1/batches`: a batch, with the official fields first, then ours; and a finished line of `results`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from api.schemas.wire import (
    DeletedObject,
    ListedObject,
    Page,
    WireModel,
    unix_seconds,
    unix_seconds_or_none,
    unix_seconds_up,
)
from jobs.accounts import prices
from jobs.accounts.money import in_currency, rounded_micros
from jobs.forecasts.outlooks import Outlook
from jobs.states import BatchState, EngineChoice, InvalidLines, Priority, UncoveredLines
from jobs.tables import Batch


class BatchError(WireModel):
    """An error of a line of the input or of the file. Fields are in the order in which Postgres keeps the keys."""

    code: str
    line: int | None
    """1-based, blank lines included; null if the error concerns the whole file."""
    param: str | None
    message: str


class BatchErrors(WireModel):
    object: Literal["list"] = "list"
    data: list[BatchError]
    num_unlisted: int
    """How many errors there are beyond those in `data`."""

    @classmethod
    def of(cls, listed: Sequence[Mapping[str, Any]], *, num_unlisted: int) -> Self | None:
        """Return the errors; None if there are none."""
        return cls(data=[BatchError(**error) for error in listed], num_unlisted=num_unlisted) if listed else None


class RequestCounts(WireModel):
    total: int
    completed: int
    failed: int
    truncated: int
    """Ours: completed lines with an answer that `max_tokens` or the context ended (`finish_reason` `length`)."""


class InputTokensDetails(WireModel):
    cached_tokens: int
    """Prompt tokens from the prefix cache."""


class OutputTokensDetails(WireModel):
    reasoning_tokens: int
    """Tokens of thoughts, for models whose chat template has marks of them."""


class BatchUsage(WireModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class BatchObject(ListedObject):
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    """Known once the input is validated."""
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchState
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None
    name: str | None
    """Its own, else that of its input file. Ours, like all fields that follow."""
    priority: Priority
    invalid_lines: InvalidLines
    uncovered_lines: UncoveredLines
    engine: EngineChoice
    reproducible: bool
    answered_by: str | None
    """The kind of engine that gave its first answer: `tokenmill` is ours; null if it has none yet."""
    spilled_lines: int
    """How many of its lines were answered by servers outside the house."""
    retry_of: str | None
    """The batch whose failed lines this one retries."""
    after: str | None
    """The batch that must be completed before this one starts."""
    filled_file_id: str | None
    """The input as it runs, with the passages of its lines' `context` in their prompts."""
    cost_micros: int
    """Micro-units of currency: the exact sum of billed amounts, rounded."""
    cost: str
    """The same, exact, in units of the currency."""
    currency: str
    eta: int | None
    """When it is expected to end, never in the past; null if unknown, and once it has ended."""
    eta_earliest: int | None
    """Eight of ten batches end between this time and `eta_latest`; null if `eta` is."""
    eta_latest: int | None
    """The end of that range; null if `eta` is."""
    position: int | None
    """While it is in progress: how many batches come before its next lines in the fair order; 0 means that it runs."""
    running_lines: int | None
    """How many of its lines run in an engine now, reported by workers every two seconds; 0 once it has ended."""
    waits_for: str | None
    """What it waits for, as a sentence. While it is validating: another batch, or the passages of its prompts. While it
    is in progress: a worker that serves its model; room in the tenant's budgets, with the numbers, the time when one
    resets, and `waiting_budget` at the beginning; or the work before it, and how fast that is done."""
    budget_warning: str | None
    """While it has not ended: a budget it is charged to whose spending has reached its warning threshold."""

    @classmethod
    def of(cls, batch: Batch, outlook: Outlook, *, name: str | None, currency: str) -> Self:
        return cls(
            id=batch.id,
            endpoint=batch.endpoint,
            model=batch.named_model,
            errors=_errors_of(batch),
            input_file_id=batch.source_file_id or batch.input_file_id,
            completion_window=batch.completion_window,
            status=batch.state,
            output_file_id=batch.output_file_id,
            error_file_id=batch.error_file_id,
            created_at=unix_seconds(batch.created_at),
            in_progress_at=unix_seconds_or_none(batch.in_progress_at),
            expires_at=unix_seconds(batch.expires_at),
            finalizing_at=unix_seconds_or_none(batch.finalizing_at),
            completed_at=unix_seconds_or_none(batch.completed_at),
            failed_at=unix_seconds_or_none(batch.failed_at),
            expired_at=unix_seconds_or_none(batch.expired_at),
            cancelling_at=unix_seconds_or_none(batch.cancelling_at),
            cancelled_at=unix_seconds_or_none(batch.cancelled_at),
            request_counts=RequestCounts(
                total=batch.num_requests,
                completed=batch.num_completed,
                failed=batch.num_failed,
                truncated=batch.num_truncated,
            ),
            usage=usage_of(batch),
            metadata=batch.request_metadata,
            name=name,
            priority=batch.priority,
            invalid_lines=batch.invalid_lines,
            uncovered_lines=batch.uncovered_lines,
            engine=batch.engine_choice,
            reproducible=batch.is_reproducible,
            answered_by=batch.engine,
            spilled_lines=batch.num_spilled,
            retry_of=batch.retry_of,
            after=batch.after_batch_id,
            filled_file_id=None if batch.source_file_id is None else batch.input_file_id,
            cost_micros=rounded_micros(prices.cost_picos(batch)),
            cost=in_currency(prices.cost_picos(batch)),
            currency=currency,
            eta=unix_seconds_up(outlook.ends_at),
            eta_earliest=unix_seconds_up(outlook.earliest_at),
            eta_latest=unix_seconds_up(outlook.latest_at),
            position=outlook.position,
            running_lines=outlook.running_lines,
            waits_for=outlook.waits_for,
            budget_warning=outlook.budget_warning,
        )


class BatchPage(Page[BatchObject]):
    """Newest first."""


def _errors_of(batch: Batch) -> BatchErrors | None:
    return BatchErrors.of(batch.errors or [], num_unlisted=batch.num_unlisted_errors)


def usage_of(batch: Batch) -> BatchUsage:
    """Return what a batch has used so far."""
    return BatchUsage(
        input_tokens=batch.input_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=batch.cached_tokens),
        output_tokens=batch.output_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=batch.reasoning_tokens),
        total_tokens=batch.input_tokens + batch.output_tokens,
    )


class LineResponse(WireModel):
    status_code: int
    request_id: str
    body: dict[str, Any]
    """The response of the line's endpoint, or an error envelope."""


class LineError(WireModel):
    code: str
    message: str


class ResultLine(WireModel):
    """A finished line in an output or error file and in `results`; either `response` or `error` is null."""

    id: str
    custom_id: str | None
    response: LineResponse | None
    error: LineError | None


class DeletedBatch(DeletedObject):
    object: Literal["batch"] = "batch"
