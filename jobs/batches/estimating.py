"""What a batch would take, before it is submitted: lines and tokens, bad lines, price, worker time, and its end.

At once and by bytes: nothing here has the model. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from jobs.accounts.money import PICOS_A_MICRO
from jobs.accounts.prices import Prices
from jobs.batches.scan import Scan
from jobs.counted import counted
from jobs.forecasts import snapshot
from jobs.forecasts.finish_times import BatchLoad, forecast, seconds_to_serve
from jobs.lines.endpoints import LineKind
from jobs.lines.input_estimate import InputEstimate
from jobs.lines.reading import iter_lines
from jobs.settings import MIB, Settings
from jobs.states import AskedPriority, Priority
from jobs.tables import Model, Tenant

CHECKED_LINES = 10_000
"""Read and checked while the caller waits; validation checks all of them."""
CHECKED_BYTES = 32 * MIB
_NEW = "estimate"
NO_KINDS: Mapping[str, LineKind] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the first lines of an input are."""

    num_lines: int
    num_invalid: int
    listed: list[dict[str, Any]]
    model: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the batch would take."""

    cost_micros: int
    """The most: with every answer as long as its max_tokens allows."""
    worker_seconds: float | None
    ends_at: datetime | None
    basis: str
    """What the last two rest on, as a sentence."""


def check_lines(
    pieces: Iterable[bytes],
    *,
    endpoint: str,
    models: Iterable[str],
    settings: Settings,
    contexts: Mapping[str, int],
    kinds: Mapping[str, LineKind] = NO_KINDS,
    is_cut: bool = False,
) -> Checked:
    """Check the first lines of an input as validation will.

    `contexts` are those of the models that a worker serves now, `kinds` what models answer that
    are offered; `is_cut`: the input goes on where the pieces end.
    """
    scan = Scan(endpoint=endpoint, models=set(models), settings=settings, contexts=contexts, kinds=kinds)
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

    How much of it lines really use was learnt from estimates by bytes: that says nothing of tokens that are exact.
    """
    if model is None:
        return Outcome(cost_micros=0, worker_seconds=None, ends_at=None, basis="No line names a model that is known.")
    prices = Prices.of(model, priority)
    picos = prices.cost_picos(input_tokens=tokens.estimated_input_tokens, output_tokens=tokens.estimated_output_tokens)
    queue = snapshot.queue_of(session, model.name)
    rate = queue.rate.tokens_per_second
    ratio = None if is_exact else queue.rate.token_ratio
    expected = (tokens.estimated_input_tokens + tokens.estimated_output_tokens) * (1.0 if ratio is None else ratio)
    worker_seconds = expected / rate if rate else None
    ends_at, basis = _end(
        session, tenant, queue, expected, ratio=ratio, priority=priority, window=window, model=model.name
    )
    return Outcome(cost_micros=-(-picos // PICOS_A_MICRO), worker_seconds=worker_seconds, ends_at=ends_at, basis=basis)


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
    """Return when work of `expected` tokens ends, and what that rests on."""
    if not queue.num_workers:
        return None, f"No running worker serves the model {model!r}."
    if queue.rate.tokens_per_second is None:
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
    found = next(one for one in forecast([*queue.loads, mine]) if one.batch_id == _NEW)
    speed = queue.rate.tokens_per_second * queue.num_workers
    workers = counted(queue.num_workers, "worker")
    basis = (
        f"{found.tokens - mine.ready_tokens:,.0f} tokens would be served before its end and {mine.ready_tokens:,.0f} "
        f"of its own, by {workers} at {speed:,.0f} tokens/s; {_use(ratio)}. Later submits of others are not in it."
    )
    seconds = seconds_to_serve(found.tokens, tokens_per_second=speed)
    if seconds is None:
        return None, f"{basis} That is more than ten years from now."
    return now + timedelta(seconds=seconds), basis


def _use(ratio: float | None) -> str:
    if ratio is None:
        return "answers count in full, and may end before their max_tokens"
    return f"lines of this model used {ratio:.0%} of what was estimated for them"


def _virtual_time(queue: snapshot.ModelQueue, tenant_id: str, priority: Priority) -> float:
    """Return where a tenant's work would stand: at its own virtual time, or level with the least active one."""
    active = [load for load in queue.loads if load.priority is priority]
    own = [load.virtual_time for load in active if load.tenant_id == tenant_id]
    return own[0] if own else min((load.virtual_time for load in active), default=0.0)
