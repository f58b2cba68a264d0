"""What features do in the transactions of the queue, which imports none of them but finds them by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from sqlalchemy.orm import Session

from jobs.states import EventType


def emit(session: Session, tenant_id: str, event_type: EventType, data: Mapping[str, Any]) -> None:
    """Tell features of an event in the transaction that makes it true; `data` names what it is about by its ids."""
    for hook in _hooks("on_event"):
        hook(session, tenant_id, event_type, data)


def end_tenant(session: Session, tenant_id: str) -> None:
    """Tell features that a tenant ends, in the transaction that ends it."""
    for hook in _hooks("on_tenant_end"):
        hook(session, tenant_id)


def stored_bytes(session: Session, tenant_id: str) -> int:
    """Return the bytes of what features keep for a tenant beside its files."""
    return sum(hook(session, tenant_id) for hook in _hooks("stored_bytes"))


@cache
def _hooks(kind: str) -> tuple[Callable[..., Any], ...]:
    return tuple(import_module("features").parts(kind))
