"""Batches by state and model, a page at a time, newest first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple, TypeVarTuple

from sqlalchemy import ARRAY, ColumnElement, Select, Text, any_, cast, column, func, or_, select, text, true, tuple_
from sqlalchemy.orm import Session

from jobs.overview.backlog import IS_LIVE
from jobs.overview.finding import Wanted
from jobs.overview.owned import Owner
from jobs.states import LIVE_BATCH_STATES, BatchState
from jobs.tables import Batch

Ts = TypeVarTuple("Ts")

PAGE = 25


class BatchProgress(NamedTuple):
    """The values of a batch that change with its progress."""

    id: str
    state: str
    num_requests: int
    num_completed: int
    num_failed: int
    output_tokens: int


class Shown(StrEnum):
    """Which batches a list shows."""

    ALL = "all"
    OPEN = "open"
    ENDED = "ended"
    FAILED = "failed"  # as a whole, or some of their lines


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFilter:
    shown: Shown = Shown.ALL
    model: str | None = None
    found: str | None = None
    """The beginning of an id, a part of a name, or a pair of metadata as `key=value`."""
    since: date | None = None
    """Created on this UTC day or later."""
    until: date | None = None
    cost_from: Decimal | None = None
    """In units of the currency."""
    before: str | None = None
    """The id of the last batch of the previous page."""


def list_batches(session: Session, tenant_id: str | None, batch_filter: BatchFilter) -> tuple[Sequence[Batch], bool]:
    """Return a page of batches, and whether there are more."""
    batches = session.scalars(_page(select(Batch), tenant_id, batch_filter)).all()
    return batches[:PAGE], len(batches) > PAGE


def progress(
    session: Session, owners: Collection[Owner], batch_filter: BatchFilter
) -> dict[Owner, tuple[BatchProgress, ...]]:
    """Return the progress of the batches on each owner's page, and of the next one: far cheaper than the page."""
    progress_by_owner: dict[Owner, tuple[BatchProgress, ...]] = dict.fromkeys(owners, ())
    tenant_ids = [owner for owner in owners if owner is not None]
    if tenant_ids:
        owner_ids = func.unnest(cast(tenant_ids, ARRAY(Text))).table_valued(column("id", Text)).render_derived("owner")
        page = _page(select(*_PROGRESS, Batch.created_at), owner_ids.c.id, batch_filter).lateral("page")
        rows = select(owner_ids.c.id, *(page.c[one.key] for one in _PROGRESS)).join_from(owner_ids, page, true())
        for owner, *values in session.execute(rows.order_by(page.c.created_at.desc(), page.c.id.desc())):
            progress_by_owner[owner] += (BatchProgress._make(values),)
    if None in progress_by_owner:
        progress_by_owner[None] = tuple(
            map(BatchProgress._make, session.execute(_page(select(*_PROGRESS), None, batch_filter)))
        )
    return progress_by_owner


def progress_of(session: Session, batch_ids: Collection[str]) -> dict[str, BatchProgress]:
    """Return the progress of these batches, by id."""
    rows = session.execute(select(*_PROGRESS).where(Batch.id == any_(cast(list(batch_ids), ARRAY(Text)))))
    return {row.id: BatchProgress._make(row) for row in rows}


def _found(part: str) -> list[ColumnElement[bool]]:
    ways = [Batch.id.startswith(part, autoescape=True), *Wanted(name=part).conditions()]
    key, sign, value = part.partition("=")
    return [*ways, *Wanted(metadata={key: value}).conditions()] if key and sign else ways


def _wanted(batch_filter: BatchFilter) -> Wanted:
    since, until = batch_filter.since, batch_filter.until
    return Wanted(
        created_from=None if since is None else _begin(since),
        created_before=None if until in (None, date.max) else _begin(until + timedelta(days=1)),
        cost_from=batch_filter.cost_from,
    )


def _begin(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())


_PROGRESS = (Batch.id, Batch.state, Batch.num_requests, Batch.num_completed, Batch.num_failed, Batch.output_tokens)


def _page(query: Select[*Ts], tenant_id: str | ColumnElement[str] | None, batch_filter: BatchFilter) -> Select[*Ts]:
    query = query.where(Batch.deleted_at.is_(None))
    if tenant_id is not None:
        query = query.where(Batch.tenant_id == tenant_id)
    if batch_filter.shown is Shown.OPEN:
        query = query.where(text(IS_LIVE))
    elif batch_filter.shown is Shown.ENDED:
        query = query.where(Batch.state.not_in(LIVE_BATCH_STATES))
    elif batch_filter.shown is Shown.FAILED:
        query = query.where((Batch.num_failed > 0) | (Batch.state == BatchState.FAILED))
    if batch_filter.model:
        query = query.where(func.coalesce(Batch.adapter, Batch.model) == batch_filter.model)
    if batch_filter.found:
        query = query.where(or_(*_found(batch_filter.found)))
    query = query.where(*_wanted(batch_filter).conditions())
    if batch_filter.before:
        last = select(Batch.created_at, Batch.id).where(Batch.id == batch_filter.before)
        query = query.where(tuple_(Batch.created_at, Batch.id) < last.scalar_subquery())
    return query.order_by(Batch.created_at.desc(), Batch.id.desc()).limit(PAGE + 1)
