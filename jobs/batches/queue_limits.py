"""How much may wait at once: of one tenant, and of all together. Asked once for each batch that is created.

Knows counts and estimates; the price of a batch is the budget's.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, func, literal_column, select
from sqlalchemy.orm import Session

from jobs.accounts.limits import Limits
from jobs.errors import LimitError, RateLimitError
from jobs.lines.endpoints import PREPARED
from jobs.settings import Settings
from jobs.states import TERMINAL_BATCH_STATES, BatchState
from jobs.tables import Batch, File

QUEUE_FULL_RETRY_SECONDS = 30.0


def check_queue(session: Session, settings: Settings) -> None:
    """Raise RateLimitError where all tenants together have as many open batches as there may be."""
    allowed = settings.max_open_batches
    open_ones = select(literal_column("1")).select_from(Batch).where(_is_open()).limit(allowed).subquery()
    if session.scalar(select(func.count()).select_from(open_ones)) == allowed:
        raise RateLimitError(
            f"The service has {allowed:,} open batches, as many as it takes. Send the request again later.",
            code="queue_full",
            retry_after_seconds=QUEUE_FULL_RETRY_SECONDS,
        )


def check_tenant(session: Session, tenant_id: str, limits: Limits, *, tokens: int) -> None:
    """Raise LimitError where one more batch, of `tokens`, is more than a tenant may have open.

    Exact where the caller holds the lock of the tenant's budget: two creates then come one after the other.
    """
    num_open, enqueued = open_work(session, tenant_id)
    if num_open >= limits.open_batches:
        raise LimitError(
            f"You have {num_open:,} open batches and {limits.open_batches:,} are allowed. "
            "Wait for some to end, or put more lines into one.",
            code="open_batches_exceeded",
        )
    if enqueued + tokens > limits.enqueued_tokens:
        raise LimitError(
            f"This batch has about {tokens:,} tokens, your open batches have {enqueued:,}, and together "
            f"{limits.enqueued_tokens:,} are allowed. Wait for some to end, submit fewer lines or lower max_tokens.",
            code="enqueued_tokens_exceeded",
        )


def open_work(session: Session, tenant_id: str) -> tuple[int, int]:
    """Return how many open batches a tenant has, and the estimated tokens of those that an engine answers."""
    estimate = File.estimated_input_tokens + File.estimated_output_tokens
    of_engines = func.sum(estimate).filter(Batch.endpoint.not_in(PREPARED))
    query = (
        select(func.count(), func.coalesce(of_engines, 0))
        .select_from(Batch)
        .join(File, File.id == Batch.input_file_id)
        .where(Batch.tenant_id == tenant_id, _is_open())
    )
    row = session.execute(query).one()
    return int(row[0]), int(row[1] or 0)


def _is_open() -> ColumnElement[bool]:
    # As literals: the partial indexes are used for nothing else.
    states = [state.value for state in BatchState if state not in TERMINAL_BATCH_STATES]
    return Batch.state.in_([literal_column(f"'{state}'") for state in states])
