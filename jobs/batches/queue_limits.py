"""Limits on open batches and queued tokens, per tenant and overall; checked once for each new batch.

Uses counts and estimates; the price of a batch is the budget's concern.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Select, bindparam, func, literal_column, select
from sqlalchemy.orm import Session

from jobs.accounts.limits import Limits, limits_of
from jobs.errors import LimitError, RateLimitError, TooLargeError
from jobs.lines.endpoints import PREPARED
from jobs.settings import Settings
from jobs.states import LIVE_BATCH_STATES
from jobs.tables import Batch, File, Tenant

QUEUE_FULL_RETRY_SECONDS = 30.0


def check_queue(session: Session, settings: Settings) -> None:
    """Raise RateLimitError where all tenants together have the maximum of open batches."""
    allowed = settings.max_open_batches
    if session.scalar(_NUM_OPEN, {"allowed": allowed}) == allowed:
        raise RateLimitError(
            f"The service has {allowed:,} open batches, as many as it takes. Send the request again later.",
            code="queue_full",
            retry_after_seconds=QUEUE_FULL_RETRY_SECONDS,
        )


def check_open(session: Session, tenant: Tenant, settings: Settings) -> None:
    """Raise RateLimitError or LimitError where a tenant may open no further batch now, however small.

    A check before its lines are written: another batch may take the last place meanwhile.
    """
    check_queue(session, settings)
    num_open, _ = open_work(session, tenant.id)
    _check_num_open(num_open, limits_of(tenant, settings))


def check_tenant(session: Session, tenant_id: str, limits: Limits, *, tokens: int) -> None:
    """Raise LimitError where a further batch of `tokens` exceeds what the tenant may have open.

    Raises TooLargeError where it exceeds that by itself, as waiting would not help. Exact where the caller holds the
    lock of the tenant's budget, which serialises creates.
    """
    num_open = check_tokens(session, tenant_id, limits, tokens=tokens)
    _check_num_open(num_open, limits)


def check_tokens(session: Session, tenant_id: str, limits: Limits, *, tokens: int) -> int:
    """Raise what `check_tenant` raises for tokens alone; return how many batches the tenant has open."""
    if tokens > limits.enqueued_tokens:
        raise TooLargeError(
            f"This batch has about {tokens:,} tokens, and all your open batches together may have "
            f"{limits.enqueued_tokens:,}, so it never has room. Submit fewer lines, lower max_tokens, or ask your "
            "operator for a higher limit.",
            code="enqueued_tokens_exceeded",
        )
    num_open, enqueued = open_work(session, tenant_id)
    if enqueued + tokens > limits.enqueued_tokens:
        raise LimitError(
            f"This batch has about {tokens:,} tokens, your open batches have {enqueued:,}, and together "
            f"{limits.enqueued_tokens:,} are allowed. Wait for some to end, submit fewer lines or lower max_tokens.",
            code="enqueued_tokens_exceeded",
        )
    return num_open


def open_work(session: Session, tenant_id: str) -> tuple[int, int]:
    """Return how many open batches a tenant has, and their estimated tokens without those of documents.

    A batch that grows is not counted: it ends only once the batches that its own lines lead to are accepted.
    """
    row = session.execute(_OPEN_WORK, {"tenant_id": tenant_id}).one()
    return int(row[0]), int(row[1] or 0)


def _check_num_open(num_open: int, limits: Limits) -> None:
    if num_open >= limits.open_batches:
        raise LimitError(
            f"You have {num_open:,} open batches and {limits.open_batches:,} are allowed. "
            "Wait for some to end, or put more lines into one.",
            code="open_batches_exceeded",
        )


def _is_open() -> ColumnElement[bool]:
    # As literals: the partial indexes match nothing else.
    return Batch.state.in_([literal_column(f"'{state}'") for state in LIVE_BATCH_STATES])


def _num_open() -> Select[int]:
    first = select(literal_column("1")).select_from(Batch).where(_is_open()).limit(bindparam("allowed")).subquery()
    return select(func.count()).select_from(first)


def _open_work() -> Select[int, int | None]:
    estimate = File.estimated_input_tokens + File.estimated_output_tokens
    of_engines = func.sum(estimate).filter(Batch.endpoint.not_in(PREPARED))
    return (
        select(func.count().filter(~Batch.is_growing), func.coalesce(of_engines, 0))
        .select_from(Batch)
        .join(File, File.id == Batch.input_file_id)
        .where(Batch.tenant_id == bindparam("tenant_id"), _is_open())
    )


_NUM_OPEN, _OPEN_WORK = _num_open(), _open_work()
