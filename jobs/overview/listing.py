"""Batches by state and model, a page at a time, newest first."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVarTuple

from sqlalchemy import Select, select, text, tuple_
from sqlalchemy.orm import Session

from jobs.overview.backlog import IS_LIVE, LIVE_STATES
from jobs.states import BatchState
from jobs.tables import Batch

Ts = TypeVarTuple("Ts")

PAGE = 25


class Shown(StrEnum):
    """Which batches a list has."""

    ALL = "all"
    OPEN = "open"
    ENDED = "ended"
    FAILED = "failed"  # as a whole, or some of their lines


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFilter:
    shown: Shown = Shown.ALL
    model: str | None = None
    named: str | None = None
    """The beginning of an id."""
    before: str | None = None
    """The id of the last batch of the page before."""


def list_batches(session: Session, tenant_id: str | None, wanted: BatchFilter) -> tuple[Sequence[Batch], bool]:
    """Return a page of batches, and whether there are more."""
    found = session.scalars(_page(select(Batch), tenant_id, wanted)).all()
    return found[:PAGE], len(found) > PAGE


def progress(session: Session, tenant_id: str | None, wanted: BatchFilter) -> Hashable:
    """Return what is another as soon as a page has other batches, or one of them got on: far cheaper than the page."""
    return tuple(map(tuple, session.execute(_page(select(*_PROGRESS), tenant_id, wanted))))


def progress_of(session: Session, batch_ids: Collection[str]) -> Hashable:
    """Return the same of these batches."""
    return tuple(map(tuple, session.execute(select(*_PROGRESS).where(Batch.id.in_(batch_ids)).order_by(Batch.id))))


_PROGRESS = (Batch.id, Batch.state, Batch.num_requests, Batch.num_completed, Batch.num_failed, Batch.output_tokens)


def _page(query: Select[*Ts], tenant_id: str | None, wanted: BatchFilter) -> Select[*Ts]:
    query = query.where(Batch.deleted_at.is_(None))
    if tenant_id is not None:
        query = query.where(Batch.tenant_id == tenant_id)
    if wanted.shown is Shown.OPEN:
        query = query.where(text(IS_LIVE))
    elif wanted.shown is Shown.ENDED:
        query = query.where(Batch.state.not_in(LIVE_STATES))
    elif wanted.shown is Shown.FAILED:
        query = query.where((Batch.num_failed > 0) | (Batch.state == BatchState.FAILED))
    if wanted.model:
        query = query.where(Batch.model == wanted.model)
    if wanted.named:
        query = query.where(Batch.id.startswith(wanted.named, autoescape=True))
    if wanted.before:
        last = select(Batch.created_at, Batch.id).where(Batch.id == wanted.before)
        query = query.where(tuple_(Batch.created_at, Batch.id) < last.scalar_subquery())
    return query.order_by(Batch.created_at.desc(), Batch.id.desc()).limit(PAGE + 1)
