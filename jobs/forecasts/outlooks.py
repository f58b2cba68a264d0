"""What batches wait for and when they end, as their owners are told: a few queries, however many batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from jobs.accounts import budgets
from jobs.chunks import fleet, waiting
from jobs.states import BatchState
from jobs.tables import Batch

KEPT_FOR = timedelta(minutes=10)
"""A forecast that is older says nothing: whoever made them is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is to be expected of a batch; all None where nothing is known, or it has ended."""

    ends_at: datetime | None = None
    position: int | None = None
    """How many batches have their next chunk before it; 0 for one that workers are at."""
    waits_for: str | None = None
    """A sentence."""


def outlooks(session: Session, found: Sequence[Batch]) -> dict[str, Outlook]:
    """Return the outlook of each batch, by its id. All are of one tenant."""
    running = [batch for batch in found if batch.state == BatchState.IN_PROGRESS]
    told = _of_followers(session, found) | (_of_running(session, running) if running else {})
    return {batch.id: told.get(batch.id, Outlook()) for batch in found}


def _of_followers(session: Session, found: Sequence[Batch]) -> dict[str, Outlook]:
    """Say what batches wait for that start after another one."""
    waiting_ones = [
        batch for batch in found if batch.state == BatchState.VALIDATING and batch.after_batch_id is not None
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


def _of_running(session: Session, running: Sequence[Batch]) -> dict[str, Outlook]:
    live = fleet.live_models(session)
    forecasts = {row.batch_id: row for row in session.execute(_FORECASTS, _values(running))}
    is_waiting = any(batch.waits_for_tokens is not None for batch in running)
    quota = budgets.quota(session, running[0].tenant_id) if is_waiting else None
    return {batch.id: _outlook(batch, live, forecasts, quota) for batch in running}


def _outlook(batch: Batch, live: Sequence[str], forecasts: Mapping[str, Any], quota: budgets.Quota | None) -> Outlook:
    forecast = forecasts.get(batch.id)
    position = None if forecast is None else forecast.position
    lacks = fleet.waits_for(batch, live) or (None if quota is None else waiting.waits_for(batch, quota))
    if lacks is not None or forecast is None:
        return Outlook(position=position, waits_for=lacks)
    return Outlook(ends_at=forecast.ends_at, position=position, waits_for=forecast.waits_for)


def _values(batches: Sequence[Batch]) -> dict[str, object]:
    return {"ids": [batch.id for batch in batches], "kept": KEPT_FOR}


# One that should have ended by now ends at any moment.
_FORECASTS = text("""
    SELECT batch_id, position, waits_for, greatest(made_at + make_interval(secs => seconds), now()) AS ends_at
    FROM forecast WHERE batch_id = ANY(CAST(:ids AS text[])) AND made_at > now() - CAST(:kept AS interval)
""")
