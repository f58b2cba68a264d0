"""Hooks: features' work in the queue's transactions. The queue does not import features but resolves hooks by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from sqlalchemy.orm import Session

from jobs.states import EventType
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


def emit(session: Session, tenant_id: str, event_type: EventType, data: Mapping[str, Any]) -> None:
    """Report an event to features in the transaction that makes it true; `data` identifies its subjects by id."""
    for hook in _hooks("on_event"):
        hook(session, tenant_id, event_type, data)


def end_tenant(session: Session, tenant_id: str) -> None:
    """Report to features that a tenant ends, in the transaction that ends it."""
    for hook in _hooks("on_tenant_end"):
        hook(session, tenant_id)


def stored_bytes(session: Session, tenant_id: str) -> int:
    """Return the bytes that features store for a tenant beside its files."""
    return sum(hook(session, tenant_id) for hook in _hooks("stored_bytes"))


def queue_counts() -> tuple[QueueCount, ...]:
    """Return what is counted of features with the queue."""
    return _hooks("counts")


@cache
def _hooks(kind: str) -> tuple[Any, ...]:
    return tuple(import_module("features").parts(kind))
