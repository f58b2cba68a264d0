"""Hooks: features' work in the queue's transactions. The queue does not import features but resolves hooks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from sqlalchemy.orm import Session

from jobs.states import EventType


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


@cache
def _hooks(kind: str) -> tuple[Callable[..., Any], ...]:
    return tuple(import_module("features").parts(kind))
