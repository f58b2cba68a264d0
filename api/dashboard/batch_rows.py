"""A batch as a row of a table: the values that change while the page is open."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.batches.responses import with_outlooks
from api.dashboard import formats
from api.dashboard.bars import bar
from api.dashboard.live import Shown
from api.dashboard.recent import Recent
from api.schemas.batches import BatchObject
from jobs.forecasts.outlooks import Outlook, outlooks
from jobs.outcomes import standing
from jobs.settings import Settings
from jobs.tables import Batch, Tenant

_OUTLOOK_SECONDS = 5.0
"""The interval of forecasts."""


def all_shown_lately(
    session: Session, batches: Sequence[Batch], settings: Settings, *, recent: Recent
) -> list[BatchObject]:
    """Return batches as API objects, with outlooks cached for as long as the interval of forecasts."""
    return with_outlooks(session, batches, recent_outlooks(session, batches, settings, recent=recent), settings)


def recent_outlooks(
    session: Session, batches: Sequence[Batch], settings: Settings, *, recent: Recent
) -> dict[str, Outlook]:
    """Return the outlooks of batches by id, cached for as long as the interval of forecasts."""
    by_key = {("outlook", batch.id, batch.state): batch for batch in batches}

    def read(unknown: Sequence[tuple[str, str, str]]) -> list[Outlook]:
        missing = [by_key[key] for key in unknown]
        read_outlooks = outlooks(session, missing, currency=settings.currency)
        return [read_outlooks[batch.id] for batch in missing]

    known = recent.get_all(list(by_key), read, seconds=_OUTLOOK_SECONDS)
    return dict(zip((batch.id for batch in batches), known, strict=True))


def tenant_names(session: Session, batch_ids: Collection[str]) -> dict[str, str]:
    """Return the names of the batches' tenants, by batch."""
    owned = select(Batch.id, Tenant.name).join(Tenant, Tenant.id == Batch.tenant_id).where(Batch.id.in_(batch_ids))
    return {row.id: row.name for row in session.execute(owned)}


def places(prefix: str, batch: BatchObject) -> dict[str, Shown]:
    """Return the changing values of a batch, by the name of their place on the page."""
    counts = batch.request_counts
    done = counts.completed + counts.failed
    stands = standing(batch.status, completed=counts.completed, failed=counts.failed)
    lines = f"{formats.exact(done)} / {formats.exact(counts.total)}"
    return {
        f"{prefix}.state": (formats.state_name(stands), formats.tone(stands)),
        **bar(prefix, completed=counts.completed, failed=counts.failed, total=counts.total),
        f"{prefix}.lines": lines if counts.total else formats.NOTHING,
        f"{prefix}.failed": f"{counts.failed:,} failed" if counts.failed else "",
        f"{prefix}.tokens": formats.number(batch.usage.total_tokens),
        f"{prefix}.end": ending(batch),
        f"{prefix}.why": batch.waits_for or "",
    }


def ending(batch: BatchObject) -> str:
    """Return when a batch ended or is expected to end, as text."""
    ended_at = batch.completed_at or batch.failed_at or batch.expired_at or batch.cancelled_at
    if ended_at is not None:
        return formats.ago(ended_at)
    return formats.NOTHING if batch.eta is None else formats.between(batch.eta, batch.eta_earliest, batch.eta_latest)
