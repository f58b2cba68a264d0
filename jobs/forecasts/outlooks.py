"""What batches wait for and when they end, for their owners: a few queries for any number of batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from jobs import hooks
from jobs.accounts import budgets, window_budgets
from jobs.accounts.allowances import Allowance
from jobs.chunks import fleet, unserved, wait_reasons
from jobs.claims.statements import ClaimSql
from jobs.counted import counted
from jobs.engines import leaving
from jobs.states import TERMINAL_BATCH_STATES, BatchState
from jobs.tables import Batch

_CONTROL = "; control workers take batches by class, and in turns between tenants."
_TO_VALIDATE = f"Waits for a control worker to check its input, before which no line runs{_CONTROL}"
_TO_WRITE_OUT = f"Its lines have ended; waits for a control worker to write its files{_CONTROL}"
_STORE_AWAY = "waiting_storage: the object store is away; its lines are asked for again every few seconds."
_INPUT_MISSED = (
    "waiting_storage: the object store did not have its input; it is requested again two minutes after it was first "
    "missed, and if it is still missing the batch fails."
)
_HAVE_LINES = (BatchState.IN_PROGRESS, BatchState.FINALIZING, BatchState.CANCELLING)
_GRACE = timedelta(seconds=10)
"""A shorter wait for a control worker is usual and not reported, so that the text does not flicker."""
KEPT_FOR = timedelta(minutes=10)
"""An older forecast is ignored: its process is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Forecast and status of a batch; all None where nothing is known, or it has ended."""

    ends_at: datetime | None = None
    earliest_at: datetime | None = None
    """10 % of batches are expected to end before it."""
    latest_at: datetime | None = None
    """10 % of batches are expected to end after it."""
    position: int | None = None
    """How many batches have their next chunk before it; 0 for a batch that workers are running."""
    running_lines: int = 0
    """Lines in an engine now."""
    waits_for: str | None = None
    """A sentence."""
    budget_warning: str | None = None
    """A sentence, where much of a budget that the batch is charged to is spent."""


def outlooks(session: Session, batches: Sequence[Batch], *, currency: str = "") -> dict[str, Outlook]:
    """Return the outlook of each batch, by id; `currency` is that of budgets."""
    open_ones = [batch for batch in batches if batch.state not in TERMINAL_BATCH_STATES]
    if not open_ones:
        return {batch.id: Outlook() for batch in batches}
    spending = _spending(session, {batch.tenant_id for batch in open_ones}, currency=currency)
    running = [batch for batch in open_ones if batch.state == BatchState.IN_PROGRESS]
    result = _of_followers(session, open_ones) | _of_held(session, open_ones)
    result |= _of_control(session, open_ones)
    result |= _of_running(session, running, spending) if running else {}
    result |= _with_running_lines(session, open_ones, result)
    result |= {
        batch.id: _deferred(result.get(batch.id, Outlook()), batch) for batch in open_ones if batch.deferred_until
    }
    result |= {
        batch.id: _warned(result.get(batch.id, Outlook()), batch, spending[batch.tenant_id]) for batch in open_ones
    }
    return {batch.id: result.get(batch.id, Outlook()) for batch in batches}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spending:
    """The budgets of a tenant."""

    quota: budgets.Quota
    allowances: Sequence[Allowance]
    currency: str


def _spending(session: Session, tenant_ids: Collection[str], *, currency: str) -> dict[str, _Spending]:
    quotas = budgets.quotas(session, tenant_ids)
    limited = [tenant_id for tenant_id, quota in quotas.items() if quota.num_window_budgets]
    allowances = window_budgets.allowances_of(session, limited) if limited else {}
    return {
        tenant_id: _Spending(quota=quota, allowances=allowances.get(tenant_id, ()), currency=currency)
        for tenant_id, quota in quotas.items()
    }


def _warned(outlook: Outlook, batch: Batch, spending: _Spending) -> Outlook:
    warning = window_budgets.warning(spending.allowances, batch.api_key_id, currency=spending.currency)
    return outlook if warning is None else replace(outlook, budget_warning=warning)


def _deferred(outlook: Outlook, batch: Batch) -> Outlook:
    """Add what a deferred batch waits for."""
    why = _STORE_AWAY if batch.input_missed_at is None else _INPUT_MISSED
    if batch.reading_limit_seconds is not None and batch.deferred_until is not None:
        why = (
            f"waiting_reading: the {counted(batch.reading_limit_seconds, 'second')} of reading documents allowed "
            f"per day are used; the batch continues at {batch.deferred_until.astimezone(UTC).isoformat()}, or when "
            "your operator raises the limit."
        )
    return replace(outlook, ends_at=None, waits_for=why)


def _of_followers(session: Session, batches: Sequence[Batch]) -> dict[str, Outlook]:
    """Return what batches that start after another one wait for."""
    waiting_ones = [
        batch for batch in batches if batch.state == BatchState.VALIDATING and batch.after_batch_id is not None
    ]
    if not waiting_ones:
        return {}
    query = select(Batch.id, Batch.state).where(Batch.id.in_([batch.after_batch_id for batch in waiting_ones]))
    states = {row.id: row.state for row in session.execute(query)}
    return {batch.id: _after(batch.after_batch_id, states) for batch in waiting_ones}


def _after(earlier_id: str | None, states: Mapping[str | None, str]) -> Outlook:
    if states[earlier_id] == BatchState.COMPLETED:
        return Outlook()
    return Outlook(waits_for=f"Starts once batch {earlier_id!r} is completed, which is {states[earlier_id]} now.")


def _of_held(session: Session, batches: Sequence[Batch]) -> dict[str, Outlook]:
    """Return what batches wait for whose lines are filled first."""
    held = [batch for batch in batches if batch.held_by is not None]
    waits = hooks.waits_of(session, held) if held else {}
    return {batch_id: Outlook(waits_for=wait) for batch_id, wait in waits.items()}


def _of_control(session: Session, batches: Sequence[Batch]) -> dict[str, Outlook]:
    """Return what batches wait for that no control worker has claimed yet."""
    ids = [batch.id for batch in batches if batch.state != BatchState.IN_PROGRESS]
    rows = session.execute(_UNCLAIMED, {"ids": ids, "grace": _GRACE}).all() if ids else []
    return {
        row.id: Outlook(waits_for=_TO_VALIDATE if row.state == BatchState.VALIDATING else _TO_WRITE_OUT) for row in rows
    }


def _of_running(session: Session, running: Sequence[Batch], spending: Mapping[str, _Spending]) -> dict[str, Outlook]:
    lacks = unserved.waits_for(session, running)
    forecasts = {row.batch_id: row for row in session.execute(_FORECASTS, _values(running))}
    late_ids = [batch_id for batch_id, forecast in forecasts.items() if forecast.is_late]
    late_ones = leaving.late_ones(session, late_ids, within=fleet.LIVE_WITHIN) if late_ids else {}
    outlooks = {
        batch.id: _outlook(batch, lacks.get(batch.id), forecasts, spending[batch.tenant_id]) for batch in running
    }
    return outlooks | {batch_id: _noted(outlooks[batch_id], late.note) for batch_id, late in late_ones.items()}


def _noted(outlook: Outlook, note: str) -> Outlook:
    return replace(outlook, waits_for=note if outlook.waits_for is None else f"{outlook.waits_for} {note}")


def _with_running_lines(
    session: Session, open_ones: Sequence[Batch], known: Mapping[str, Outlook]
) -> dict[str, Outlook]:
    """Add the lines that engines compute now, including those of ending batches."""
    begun = [batch for batch in open_ones if batch.state in _HAVE_LINES]
    running = fleet.running_lines(session, begun) if begun else {}
    return {
        batch_id: replace(known.get(batch_id, Outlook()), running_lines=num_lines)
        for batch_id, num_lines in running.items()
    }


def _outlook(batch: Batch, worker: str | None, forecasts: Mapping[str, Any], spending: _Spending) -> Outlook:
    """`worker`: which workers it lacks."""
    forecast = forecasts.get(batch.id)
    lacks = worker or wait_reasons.waits_for(batch, spending.quota, spending.allowances, currency=spending.currency)
    position = None if forecast is None else forecast.position
    if lacks is not None or forecast is None:
        return Outlook(waits_for=lacks, position=position)
    return Outlook(
        ends_at=forecast.ends_at,
        earliest_at=forecast.earliest_at,
        latest_at=forecast.latest_at,
        waits_for=forecast.waits_for,
        position=position,
    )


def _values(batches: Sequence[Batch]) -> dict[str, object]:
    return {"ids": [batch.id for batch in batches], "kept": KEPT_FOR}


# A batch whose forecast end is past ends at any moment.
_FORECASTS = text("""
    SELECT batch_id, position, waits_for, is_late,
        CASE WHEN seconds IS NOT NULL THEN greatest(made_at + make_interval(secs => seconds), clock_timestamp())
            END AS ends_at,
        CASE WHEN earliest_seconds IS NOT NULL THEN greatest(
            made_at + make_interval(secs => earliest_seconds), clock_timestamp()
        ) END AS earliest_at,
        CASE WHEN latest_seconds IS NOT NULL THEN greatest(
            made_at + make_interval(secs => latest_seconds), clock_timestamp()
        ) END AS latest_at
    FROM forecast WHERE batch_id = ANY(CAST(:ids AS text[])) AND made_at > now() - CAST(:kept AS interval)
""")

LAST_ENDS = text("""
    SELECT model, priority, max(expected) AS expected, max(greatest(earliest, 0)) AS earliest, max(latest) AS latest
    FROM (
        SELECT batch.model, batch.priority, greatest(forecast.seconds - age, 0) AS expected,
            coalesce(forecast.earliest_seconds, forecast.seconds) - age AS earliest,
            greatest(coalesce(forecast.latest_seconds, forecast.seconds) - age, 0) AS latest
        FROM forecast JOIN batch ON batch.id = forecast.batch_id AND batch.state = 'in_progress'
        CROSS JOIN LATERAL (SELECT extract(epoch FROM clock_timestamp() - forecast.made_at) AS age) AS since
        WHERE forecast.seconds IS NOT NULL AND forecast.made_at > now() - CAST(:kept AS interval)
    ) AS told GROUP BY model, priority ORDER BY model, priority
""")
"""By model and class, in how many seconds the last batch with a known end will end."""

_CLAIMS = ClaimSql("batch")

# As `jobs.batches.sweeps` finds due batches; when a batch was filled is not recorded.
_UNCLAIMED = text(f"""
    SELECT batch.id, batch.state FROM batch LEFT JOIN batch AS earlier ON earlier.id = batch.after_batch_id
    WHERE batch.id = ANY(CAST(:ids AS text[]))
        AND {_CLAIMS.is_free}
        AND batch.deferred_until IS NULL
        AND greatest(batch.created_at, batch.finalizing_at, batch.cancelling_at, earlier.completed_at)
            < clock_timestamp() - CAST(:grace AS interval)
        AND CASE WHEN batch.state = 'validating'
            THEN (batch.after_batch_id IS NULL OR earlier.state = 'completed' AND earlier.deleted_at IS NULL)
                AND batch.held_by IS NULL AND batch.source_file_id IS NULL
            ELSE NOT EXISTS (SELECT FROM chunk WHERE batch_id = batch.id AND state IN ('ready', 'leased'))
                AND NOT EXISTS (SELECT FROM chunk WHERE batch_id = batch.id AND state = 'waiting')
                AND NOT EXISTS (SELECT FROM chunk WHERE batch_id = batch.id AND state = 'deferred') END
""")
