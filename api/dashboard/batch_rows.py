"""A batch as a row of a table: what of it changes while one looks. Pure but for the clock of `formats`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.batches.answers import with_outlooks
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
"""As often as forecasts are made."""


def all_shown_lately(
    session: Session, found: Sequence[Batch], settings: Settings, *, recent: Recent
) -> list[BatchObject]:
    """Return the same as `all_shown`; what a batch waits for, and until when, is asked anew as often as it is found."""
    batches = {("outlook", batch.id, batch.state): batch for batch in found}

    def read(unknown: Sequence[tuple[str, str, str]]) -> list[Outlook]:
        asked = [batches[key] for key in unknown]
        told = outlooks(session, asked, currency=settings.currency)
        return [told[batch.id] for batch in asked]

    known = recent.get_all(list(batches), read, seconds=_OUTLOOK_SECONDS)
    told = dict(zip((batch.id for batch in found), known, strict=True))
    return with_outlooks(found, told, settings)


def tenant_names(session: Session, batch_ids: Collection[str]) -> dict[str, str]:
    """Return the names of the batches' tenants, by batch."""
    owned = select(Batch.id, Tenant.name).join(Tenant, Tenant.id == Batch.tenant_id).where(Batch.id.in_(batch_ids))
    return {row.id: row.name for row in session.execute(owned)}


def places(prefix: str, batch: BatchObject) -> dict[str, Shown]:
    """Return what of a batch changes, by the name of its place on the page."""
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
    """Say when a batch ended, or when it is expected to."""
    ended_at = batch.completed_at or batch.failed_at or batch.expired_at or batch.cancelled_at
    if ended_at is not None:
        return formats.ago(ended_at)
    return formats.NOTHING if batch.eta is None else formats.between(batch.eta, batch.eta_earliest, batch.eta_latest)
