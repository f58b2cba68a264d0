"""Hooks: features' work in the queue's transactions. The queue does not import features but resolves hooks by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from sqlalchemy.orm import Session

from jobs.states import EventType
from jobs.tables import Batch
from jobs.telemetry.meters import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCount:
    """What `/metrics` shows of a feature's tables; it is counted now and then, by one process for all."""

    name: str
    """In the counted numbers; no other has it."""
    query: str
    """SQL of one value, which JSON can have."""
    samples: Callable[[Any], Iterable[Sample]]
    """What is shown of that value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchParts:
    """What exists for one batch alone, and is deleted with it."""

    batch_ids: Sequence[str] = ()
    file_ids: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A feature that fills lines of batches, which it holds until then: they are validated again afterwards."""

    hold: Callable[[Session, Batch], str]
    """Called with a locked batch when its validation finds lines to fill; returns the id of what holds it from then on.

    Once the input is filled, the feature clears `held_by`, and sets `input_file_id` and `source_file_id`."""
    let_go: Callable[[Session, Batch], None]
    """Called when a held batch ends, locked and no longer held: what fills it is of no use."""
    parts_of: Callable[[Session, str], BatchParts]
    """Returns what exists for a batch that is deleted. Raises ConflictError where it is still worked on."""
    waits_of: Callable[[Session, Sequence[Batch]], Mapping[str, str]]
    """Returns what held batches wait for, as sentences, by id."""


def named(batch_id: str, name: str | None) -> dict[str, str]:
    """Return what events call a batch: its id, and the name that its owner gave it."""
    return {"id": batch_id} if name is None else {"id": batch_id, "name": name}


def emit(session: Session, tenant_id: str, event_type: EventType, data: Mapping[str, Any]) -> None:
    """Report an event to features in the transaction that makes it true; `data` identifies its subjects by id."""
    for hook in _hooks("on_event"):
        hook(session, tenant_id, event_type, data)


def end_tenant(session: Session, tenant_id: str) -> None:
    """Report to features that a tenant ends, in the transaction that ends it."""
    for hook in _hooks("on_tenant_end"):
        hook(session, tenant_id)


def hold(session: Session, batch: Batch) -> str:
    """Let a feature fill the lines of a locked batch; return the id of what holds it until then."""
    (holder,) = _holders()
    return holder.hold(session, batch)


def let_go(session: Session, batch: Batch) -> None:
    """Report that a batch that was held ends; it is locked."""
    for holder in _holders():
        holder.let_go(session, batch)


def parts_of(session: Session, batch_id: str) -> BatchParts:
    """Return what is deleted with a batch. Raises ConflictError where a feature still works on it."""
    parts = [holder.parts_of(session, batch_id) for holder in _holders()]
    batch_ids = [one for each in parts for one in each.batch_ids]
    return BatchParts(batch_ids=batch_ids, file_ids=[one for each in parts for one in each.file_ids])


def waits_of(session: Session, batches: Sequence[Batch]) -> dict[str, str]:
    """Return what held batches wait for, as sentences, by id."""
    return {batch_id: wait for holder in _holders() for batch_id, wait in holder.waits_of(session, batches).items()}


def stored_bytes(session: Session, tenant_id: str) -> int:
    """Return the bytes that features store for a tenant beside its files."""
    return sum(hook(session, tenant_id) for hook in _hooks("stored_bytes"))


def queue_counts() -> tuple[QueueCount, ...]:
    """Return what is counted of features with the queue."""
    return _hooks("counts")


def _holders() -> tuple[Holder, ...]:
    return _hooks("holders")


@cache
def _hooks(kind: str) -> tuple[Any, ...]:
    return tuple(import_module("features").parts(kind))
