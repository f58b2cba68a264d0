"""The flows of one kind: found, listed, locked, cancelled and moved. A kind's states are written here only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Generic

from sqlalchemy import ColumnElement, func, select, true
from sqlalchemy.orm import Session

from flows import rows
from flows.rows import AnyFlow
from jobs.errors import ConflictError, NotFoundError
from jobs.pagination import Page, read_page
from jobs.states import CANCELLING, State, require_move

log = logging.getLogger(__name__)

_CANCELLED = (CANCELLING, "cancelled")


class Kind(Generic[AnyFlow]):
    """What the API does with flows of one kind, whichever it is."""

    def __init__(
        self,
        table: type[AnyFlow],
        noun: str,
        *,
        ends: Collection[State],
        is_shown: Callable[[], ColumnElement[bool]] = true,
    ) -> None:
        """`noun` names it in messages, codes and parameters; `ends` are the states in which nothing goes on.

        Flows for which `is_shown` does not hold are not found.
        """
        self.table = table
        self.noun = noun
        self._ends = frozenset(ends)
        self._is_shown = is_shown

    def get(self, session: Session, tenant_id: str, flow_id: str) -> AnyFlow:
        """Return a flow of this tenant. Raises NotFoundError, also if it is another tenant's."""
        is_mine = (self.table.id == flow_id) & (self.table.tenant_id == tenant_id)
        flow = session.scalar(select(self.table).where(is_mine, self._is_shown()))
        if flow is None:
            raise self.not_found(flow_id)
        return flow

    def page(
        self, session: Session, tenant_id: str, *wanted: ColumnElement[bool], after: str | None, limit: int
    ) -> Page[AnyFlow]:
        """Return a page of a tenant's flows, newest first. Raises InputError on an unknown `after`."""
        query = select(self.table).where(self.table.tenant_id == tenant_id, self._is_shown(), *wanted)
        return read_page(session, query, table=self.table, tenant_id=tenant_id, after=after, limit=limit)

    def lock(self, session: Session, flow_id: str) -> AnyFlow | None:
        """Return a flow, freshly read and locked until the transaction ends, or None."""
        return rows.lock(session, self.table, flow_id)

    def lock_own(self, session: Session, tenant_id: str, flow_id: str) -> AnyFlow:
        """Return a locked flow of this tenant. Raises NotFoundError, also if it was deleted meanwhile."""
        self.get(session, tenant_id, flow_id)
        flow = self.lock(session, flow_id)
        if flow is None:
            raise self.not_found(flow_id)
        return flow

    def lock_to_cancel(self, session: Session, tenant_id: str, flow_id: str) -> tuple[AnyFlow, bool]:
        """Return a locked flow of this tenant, and whether it has still to be cancelled.

        Raises NotFoundError, or ConflictError if it has ended.
        """
        flow = self.lock_own(session, tenant_id, flow_id)
        if flow.state in _CANCELLED:
            return flow, False
        if flow.ended_at is not None:
            message = f"Cannot cancel {self._a_noun} with status '{flow.state}'."
            raise ConflictError(message, code=f"{self.noun}_not_cancellable")
        return flow, True

    def lock_to_delete(self, session: Session, tenant_id: str, flow_id: str) -> AnyFlow:
        """Return a locked flow of this tenant that has ended. Raises NotFoundError, or ConflictError otherwise."""
        flow = self.lock_own(session, tenant_id, flow_id)
        if flow.ended_at is None:
            raise ConflictError(
                f"Cannot delete {self._a_noun} with status '{flow.state}'. Cancel it or wait for its end, then delete "
                "it.",
                code=f"{self.noun}_not_deletable",
            )
        return flow

    def move(self, session: Session, flow: AnyFlow, after: State) -> None:
        """Move a locked flow to its next state; at its end the claim is released. Raises IllegalMoveError."""
        self.enter(session, flow, after)
        session.flush()

    def enter(self, session: Session, flow: AnyFlow, after: State) -> None:
        """Move a locked flow as `move`, but write it with the next flush: for many at once."""
        before = flow.state
        require_move(type(after)(before), after)
        flow.state = after.value
        flow.look_at = None
        flow.ended_at = session.scalar(select(func.now())) if after in self._ends else None
        if after in self._ends:
            rows.free(flow)
        log.info("%s moved %s_id=%s state=%s after=%s", self.noun, self.noun, flow.id, before, after)

    def not_found(self, flow_id: str) -> NotFoundError:
        return NotFoundError(f"No {self.noun} found with id {flow_id[:100]!r}.", param=f"{self.noun}_id")

    @property
    def _a_noun(self) -> str:
        return f"{'an' if self.noun[0] in 'aeiou' else 'a'} {self.noun}"
