"""Claims on the rows of a table: which control worker is at one, and until when, on the database's clock.

A claim ends when it is given up or its time is over; then another worker begins anew. The tables have the columns
`claim_fence`, `claimed_by` and `claimed_until`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.errors import FencedOutError
from jobs.ids import new_id
from jobs.tables.base import Base

Row = TypeVar("Row", bound=Base)

UNCLAIMED = "(claimed_until IS NULL OR claimed_until <= clock_timestamp())"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A row that one worker is at."""

    id: str
    state: str
    """In which it was claimed."""
    worker_id: str
    fence: int
    """Good for this claim only: the next one has a higher number."""


class Claims(Generic[Row]):
    """The claims on the rows of one table."""

    def __init__(
        self,
        table: type[Row],
        states: Collection[str],
        *,
        lock: Callable[[Session, str], Row | None],
        ends_with_state: bool = False,
    ) -> None:
        """Rows in one of `states` can be claimed; `lock` returns one, fresh and locked until the transaction ends.

        Where a claim `ends_with_state`, it is over once its row has moved on.
        """
        self.kind = table.__tablename__
        self._states = list(states)
        self._lock = lock
        self._ends_with_state = ends_with_state
        is_mine = "id = :id AND claim_fence = :fence AND claimed_by = :worker_id"
        if ends_with_state:
            is_mine += " AND state = :state"
        update = f"UPDATE {self.kind} SET"
        until = "claimed_until = clock_timestamp() + CAST(:lease AS interval)"
        # It waits for who has the row locked: a dispatcher that notes a hint is not at it, and who is has claimed it.
        self._claim = text(f"""
            {update} claim_fence = claim_fence + 1, claimed_by = :worker_id, {until}
            WHERE id = (
                SELECT id FROM {self.kind} WHERE id = :id AND state = ANY(CAST(:states AS text[])) AND {UNCLAIMED}
                FOR NO KEY UPDATE
            )
            RETURNING claim_fence, state
        """)
        self._renew = text(f"{update} {until} WHERE {is_mine} RETURNING state")
        self._confirm = text(f"SELECT id FROM {self.kind} WHERE {is_mine} AND claimed_until > clock_timestamp()")
        self._give_up = text(f"{update} claimed_by = NULL, claimed_until = NULL WHERE {is_mine}")

    def claim(self, session: Session, row_id: str, *, lease: timedelta) -> Claim | None:
        """Take a row that nobody has, or None."""
        worker_id = new_id("control")
        values = {"id": row_id, "worker_id": worker_id, "states": self._states, "lease": lease}
        found = session.execute(self._claim, values).one_or_none()
        if found is None:
            return None
        return Claim(id=row_id, state=found.state, worker_id=worker_id, fence=found.claim_fence)

    def renew(self, session: Session, claim: Claim, *, lease: timedelta) -> str:
        """Let a claim last for `lease` from now on; return the row's state. Raises FencedOutError where it is over."""
        state: str | None = session.scalar(self._renew, _values(claim) | {"lease": lease})
        if state is None:
            raise self.over(claim)
        return state

    def confirm(self, session: Session, claim: Claim) -> None:
        """Raise FencedOutError where a claim is over."""
        if session.execute(self._confirm, _values(claim)).one_or_none() is None:
            raise self.over(claim)

    def lock(self, session: Session, claim: Claim) -> Row:
        """Return the row of a claim, fresh and locked until the transaction ends. Raises FencedOutError."""
        row = self._lock(session, claim.id)
        if row is None or (row.claim_fence, row.claimed_by) != (claim.fence, claim.worker_id):
            raise self.over(claim)
        if self._ends_with_state and row.state != claim.state:
            raise self.over(claim)
        return row

    def give_up(self, session: Session, claim: Claim) -> None:
        """Let others take the row, unless they have it already."""
        session.execute(self._give_up, _values(claim))

    def over(self, claim: Claim) -> FencedOutError:
        """Return what says that a claim is over."""
        return FencedOutError(f"{self.kind} {claim.id} is no longer claimed by {claim.worker_id}, fence {claim.fence}")


def _values(claim: Claim) -> dict[str, object]:
    return {"id": claim.id, "worker_id": claim.worker_id, "fence": claim.fence, "state": claim.state}
