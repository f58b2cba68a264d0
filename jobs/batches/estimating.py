"""Estimate a batch before it is submitted: lines, tokens, invalid lines, price, worker time and end; and predict
whether it would be accepted.

Immediate and by bytes: no tokenizer is loaded. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from jobs.accounts import budgets
from jobs.accounts.limits import limits_of
from jobs.accounts.prices import Prices
from jobs.batches import lifecycle, queue_limits
from jobs.batches.scan import Scan, too_many_invalid, whole_file_problem
from jobs.batches.submission import CreateBatch
from jobs.counted import counted
from jobs.engines.engine import Known
from jobs.errors import InputError
from jobs.forecasts import snapshot
from jobs.forecasts.finish_times import BatchLoad, forecast, seconds_to_serve
from jobs.lines.endpoints import LineKind
from jobs.lines.input_estimate import InputEstimate
from jobs.lines.reading import iter_lines
from jobs.settings import MIB, Settings
from jobs.states import AskedPriority, InvalidLines, Priority
from jobs.tables import Model, Tenant

CHECKED_LINES = 10_000
"""Lines checked while the caller waits; validation checks all of them."""
CHECKED_BYTES = 32 * MIB
_NEW = "estimate"
NO_KINDS: Mapping[str, LineKind] = {}
NO_ENGINES: Mapping[str, Sequence[Known]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The checked first lines of an input."""

    num_lines: int
    num_invalid: int
    listed: list[dict[str, Any]]
    model: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Cost and end of a batch."""

    cost_picos: int
    """Upper bound, with every answer as long as its max_tokens allows."""
    worker_seconds: float | None
    ends_at: datetime | None
    basis: str
    """What the last two are based on, as a sentence."""


class Verdict(StrEnum):
    """The worst known outcome of a create call."""

    ACCEPTED = "accepted"
    SKIPS_LINES = "skips_lines"
    """It runs, and only its invalid lines fail."""
    FAILS = "fails"
    """It is created, and its validation fails it."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    verdict: Verdict
    reason: str | None = None
    """As a sentence; None for an accepted batch."""


def thoughts_of_a_line(session: Session, tenant_id: str, model: str) -> float | None:
    """Return the tokens of thoughts of a line of this model, as the tenant's last batches had them; None without any.

    A mean over the lines of up to 20 batches whose answers thought, among the tenant's last thousand.
    """
    number = session.scalar(_THOUGHTS, {"tenant_id": tenant_id, "model": model})
    return None if number is None else float(number)


_THOUGHTS = text("""
    SELECT sum(reasoning_tokens) / sum(num_computed) FROM (
        SELECT reasoning_tokens, num_computed FROM (
            SELECT coalesce(adapter, model) AS model, reasoning_tokens, num_computed, created_at FROM batch
            WHERE tenant_id = :tenant_id ORDER BY created_at DESC, id DESC LIMIT 1000
        ) AS latest
        WHERE model = :model AND reasoning_tokens > 0 ORDER BY created_at DESC LIMIT 20
    ) AS thinking
""")


def check_lines(
    pieces: Iterable[bytes],
    *,
    endpoint: str,
    models: Iterable[str],
    settings: Settings,
    contexts: Mapping[str, int],
    kinds: Mapping[str, LineKind] = NO_KINDS,
    engines: Mapping[str, Sequence[Known]] = NO_ENGINES,
    is_cut: bool = False,
) -> Checked:
    """Check the first lines of an input as validation will.

    `contexts` are those of the models that a worker serves now, `kinds` the line kinds of the offered models,
    `engines` those that have served each; `is_cut` says that the input continues after the pieces.
    """
    scan = Scan(
        endpoint=endpoint, models=set(models), settings=settings, contexts=contexts, kinds=kinds, engines=engines
    )
    lines = iter_lines(pieces, max_line_bytes=settings.max_line_bytes, is_cut=is_cut)
    for line in islice(lines, CHECKED_LINES):
        scan.check(line)
        scan.planner.pop_closed()
    return Checked(num_lines=scan.num_requests, num_invalid=scan.num_problems, listed=scan.listed, model=scan.model)


def outcome(
    session: Session,
    tenant: Tenant,
    tokens: InputEstimate,
    *,
    model: Model | None,
    priority: AskedPriority,
    window: timedelta,
    is_exact: bool,
) -> Outcome:
    """Return what a batch of these tokens would cost and when it would end, if it came now and nothing after it.

    The share of the estimate that lines really use was learnt from estimates by bytes, and does not apply to exact
    tokens.
    """
    if model is None:
        return Outcome(cost_picos=0, worker_seconds=None, ends_at=None, basis="No line names a known model.")
    prices = Prices.of(model, priority)
    picos = prices.cost_picos(input_tokens=tokens.estimated_input_tokens, output_tokens=tokens.estimated_output_tokens)
    queue = snapshot.queue_of(session, model.base or model.name)
    rate = queue.rate.tokens_per_second
    ratio = None if is_exact else queue.rate.token_ratio
    expected = (tokens.estimated_input_tokens + tokens.estimated_output_tokens) * (1.0 if ratio is None else ratio)
    worker_seconds = expected / rate if rate else None
    ends_at, basis = _end(
        session, tenant, queue, expected, ratio=ratio, priority=priority, window=window, model=model.name
    )
    return Outcome(cost_picos=picos, worker_seconds=worker_seconds, ends_at=ends_at, basis=basis)


def _end(
    session: Session,
    tenant: Tenant,
    queue: snapshot.ModelQueue,
    expected: float,
    *,
    ratio: float | None,
    priority: AskedPriority,
    window: timedelta,
    model: str,
) -> tuple[datetime | None, str]:
    """Return when work of `expected` tokens ends, and what that is based on."""
    if not queue.num_workers:
        return None, f"No running worker serves the model {model!r}."
    if queue.tokens_per_second is None:
        return None, f"No worker of the model {model!r} was measured yet."
    now = session.scalar(select(func.clock_timestamp()))
    assert now is not None
    mine = BatchLoad(
        batch_id=_NEW,
        tenant_id=tenant.id,
        priority=Priority(priority),
        weight=tenant.weight,
        virtual_time=_virtual_time(queue, tenant.id, Priority(priority)),
        expires_at=now + window,
        ready_tokens=max(expected, 1.0),
        leased_tokens=0.0,
        leased_lines=0,
    )
    outlook = next(one for one in forecast([*queue.loads, mine]) if one.batch_id == _NEW)
    speed = queue.tokens_per_second
    workers = counted(queue.num_workers, "worker")
    basis = (
        f"{outlook.tokens - mine.ready_tokens:,.0f} tokens would be served before its end and {mine.ready_tokens:,.0f} "
        f"of its own, by {workers} at {speed:,.0f} tokens/s; {_use(ratio)}. Later submits of others are not included."
    )
    seconds = seconds_to_serve(outlook.tokens, tokens_per_second=speed)
    if seconds is None:
        return None, f"{basis} That is more than ten years from now."
    return now + timedelta(seconds=seconds), basis


def _use(ratio: float | None) -> str:
    if ratio is None:
        return "answers count in full, and may end before their max_tokens"
    return f"lines of this model used {ratio:.0%} of what was estimated for them"


def _virtual_time(queue: snapshot.ModelQueue, tenant_id: str, priority: Priority) -> float:
    """Return a tenant's place in the order: its own virtual time, or level with the least active one."""
    active = [load for load in queue.loads if load.priority is priority]
    own = [load.virtual_time for load in active if load.tenant_id == tenant_id]
    return own[0] if own else min((load.virtual_time for load in active), default=0.0)


def foretell(
    session: Session,
    tenant: Tenant,
    request: CreateBatch,
    settings: Settings,
    *,
    tokens: InputEstimate,
    checked: Checked,
    key_id: str | None,
) -> Foretold:
    """Predict the result of a create call.

    Of the temporary limits only a full queue counts: the rates per minute will have changed by the time the call is
    sent.
    """
    refused = _refusal(session, tenant, request, settings, tokens=tokens, key_id=key_id)
    if refused is not None:
        return Foretold(verdict=Verdict.REFUSED, reason=refused)
    problem = _file_problem(request, settings, tokens=tokens, checked=checked)
    if problem is not None:
        return Foretold(verdict=Verdict.FAILS, reason=str(problem["message"]))
    if checked.num_invalid:
        return Foretold(verdict=Verdict.SKIPS_LINES, reason=f"{_invalid(checked)}, and fail alone")
    return Foretold(verdict=Verdict.ACCEPTED)


def _refusal(
    session: Session,
    tenant: Tenant,
    request: CreateBatch,
    settings: Settings,
    *,
    tokens: InputEstimate,
    key_id: str | None,
) -> str | None:
    total = tokens.estimated_input_tokens + tokens.estimated_output_tokens
    try:
        lifecycle.check_create(session, tenant, request, settings)
        budgets.check_room(session, tenant.id, total, key_id=key_id, may_overflow=tenant.may_overflow)
        queue_limits.check_tenant(session, tenant.id, limits_of(tenant, settings), tokens=total)
    except InputError as error:
        return error.message
    return None


def _file_problem(
    request: CreateBatch, settings: Settings, *, tokens: InputEstimate, checked: Checked
) -> dict[str, Any] | None:
    """Return the problem that would fail the validation, as far as lines were checked."""
    if tokens.num_requests == 0:
        return whole_file_problem("empty_file", "the input file has no requests; write one JSON object a line")
    if checked.num_invalid and request.invalid_lines is InvalidLines.FAIL:
        return whole_file_problem("invalid_lines", f"{_invalid(checked)}, and one fails the batch")
    return too_many_invalid(checked.num_invalid, num_requests=tokens.num_requests, settings=settings)


def _invalid(checked: Checked) -> str:
    return f"{checked.num_invalid:,} of {counted(checked.num_lines, 'checked line')} are invalid"
