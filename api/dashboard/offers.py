"""The actions that a page offers for a batch: those that the API would allow now, by the same rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from jobs.batches import changing, lifecycle, retrying
from jobs.errors import InputError
from jobs.settings import Settings
from jobs.states import TERMINAL_BATCH_STATES, AskedPriority
from jobs.tables import Batch, Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOffers:
    """The actions that a tenant may take on a batch."""

    cancel: bool = False
    change: bool = False
    priorities: Sequence[AskedPriority] = ()
    """Classes that it may change to; empty if it must keep its own."""
    delete: bool = False
    retry: bool = False
    no_retry: str | None = None
    """The API's reason why a batch with failed lines cannot be retried."""


def offers_of(session: Session, tenant: Tenant, batch: Batch, settings: Settings) -> BatchOffers:
    """Return the actions that the API would allow on a batch of this tenant."""
    has_ended = batch.state in TERMINAL_BATCH_STATES
    has_failed_lines = has_ended and batch.num_failed > 0
    no_retry = _no_retry(session, tenant, batch, settings) if has_failed_lines else None
    return BatchOffers(
        cancel=lifecycle.is_cancellable(batch),
        change=changing.is_changeable(batch),
        priorities=changing.priorities_to_choose(tenant, batch),
        delete=has_ended,
        retry=has_failed_lines and no_retry is None,
        no_retry=no_retry,
    )


def _no_retry(session: Session, tenant: Tenant, batch: Batch, settings: Settings) -> str | None:
    try:
        retrying.begin(session, tenant, batch, retrying.wish(batch), settings)
        retrying.check_lines(session, batch)
    except InputError as error:
        return error.message
    return None
