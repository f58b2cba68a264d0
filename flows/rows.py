"""The row of a flow: its lock, its claim, and its deletion."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from sqlalchemy import text
from sqlalchemy.orm import Session

from flows.tables import Flow
from jobs.claims.statements import CLAIM_COLUMNS
from jobs.database import fresh_row

AnyFlow = TypeVar("AnyFlow", bound=Flow)


def lock(session: Session, kind: type[AnyFlow], flow_id: str) -> AnyFlow | None:
    """Return a flow, freshly read and locked until the transaction ends, or None."""
    # In two statements: a join would show the kind's columns as they were before the wait for the lock.
    if session.execute(_LOCK, {"flow_id": flow_id}).one_or_none() is None:
        return None
    return fresh_row(session, kind, flow_id)


def free(flow: Flow) -> None:
    """Release the claim of a locked flow."""
    CLAIM_COLUMNS.free(flow)


def forget(session: Session, flow_ids: Collection[str]) -> None:
    """Delete flows with their nodes and the rows of their kind."""
    session.execute(_FORGET, {"flow_ids": list(flow_ids)})


_LOCK = text("SELECT id FROM flow WHERE id = :flow_id FOR NO KEY UPDATE")
_FORGET = text("DELETE FROM flow WHERE id = ANY(:flow_ids)")
