"""Fenced claims on the rows of a table: one worker owns a row until its claim expires, by the database's clock.

A claim ends when it is given up, or when it has expired and another worker takes the row; with `ends_with_state` also
when the row changes state. A worker whose claim has ended gets FencedOutError and can write nothing under it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy import Executable, text
from sqlalchemy.orm import Session

from jobs.claims.statements import CLAIM_COLUMNS, ClaimColumns, ClaimSql
from jobs.database import locked_row
from jobs.errors import FencedOutError
from jobs.ids import new_id
from jobs.tables.base import Base

Row = TypeVar("Row", bound=Base)


class Held(Protocol):
    """A row as the worker that claimed it sees it."""

    @property
    def guard(self) -> Mapping[str, Any]:
        """Return `id`, `fence`, `owner` and `state`, the parameters of `ClaimSql.is_held`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A row that is owned by one worker."""

    id: str
    state: str
    """The row's state when it was claimed."""
    owner: str
    fence: int
    """Valid for this claim only; the next claim has a higher number."""

    @property
    def guard(self) -> Mapping[str, Any]:
        return {"id": self.id, "fence": self.fence, "owner": self.owner, "state": self.state}


class HeldRows(Generic[Row]):
    """The claimed rows of one table: renew, confirm and lock them."""

    def __init__(
        self,
        table: type[Row],
        *,
        columns: ClaimColumns = CLAIM_COLUMNS,
        lock: Callable[[Session, Any], Row | None] | None = None,
        ends_with_state: bool = False,
    ) -> None:
        """`lock` returns a row, freshly read and locked until the transaction ends.

        With `ends_with_state` a claim also ends when its row changes state.
        """
        self.kind = table.__tablename__
        self.sql = ClaimSql(self.kind, columns, ends_with_state=ends_with_state)
        self.columns = columns
        self._table = table
        self._lock = lock or self._lock_row
        self._ends_with_state = ends_with_state
        renewal = f"UPDATE {self.kind} SET {self.sql.renewed}"
        self._renew = text(f"{renewal} WHERE {self.sql.is_held} RETURNING state")
        self._confirm = text(f"SELECT id FROM {self.kind} WHERE {self.sql.is_held} AND NOT {self.sql.is_over}")
        self._hold = text(f"SELECT id FROM {self.kind} WHERE {self.sql.is_held} FOR NO KEY UPDATE")

    def renew(self, session: Session, claim: Held, *, lease: timedelta) -> str:
        """Extend a claim to `lease` from now; return the row's state. Raises FencedOutError where it has ended."""
        return str(self._require(session, self._renew, claim, lease=lease))

    def confirm(self, session: Session, claim: Held) -> None:
        """Raise FencedOutError where a claim has ended or expired."""
        self._require(session, self._confirm, claim)

    def hold(self, session: Session, claim: Held) -> None:
        """Lock the row of a claim until the transaction ends. Raises FencedOutError."""
        self._require(session, self._hold, claim)

    def lock(self, session: Session, claim: Held) -> Row:
        """Return the row of a claim, freshly read and locked until the transaction ends. Raises FencedOutError."""
        row = self._lock(session, claim.guard["id"])
        if row is None or not self.is_held(row, claim):
            raise self.over(claim)
        return row

    def is_held(self, row: Any, claim: Held) -> bool:
        """Return whether a row that `lock` has returned has this claim."""
        guard = claim.guard
        holder = (getattr(row, self.columns.fence), getattr(row, self.columns.owner))
        if holder != (guard["fence"], guard["owner"]):
            return False
        return not self._ends_with_state or row.state == guard["state"]

    def over(self, claim: Held) -> FencedOutError:
        """Return the error for a claim that has ended."""
        guard = claim.guard
        return FencedOutError(
            f"{self.kind} {guard['id']} is no longer claimed by {guard['owner']} under fence {guard['fence']}"
        )

    def _require(self, session: Session, statement: Executable, claim: Held, **values: object) -> Any:
        """Return the first column of a statement on the claimed row. Raises FencedOutError where there is no row."""
        row = session.execute(statement, {**claim.guard, **values}).one_or_none()
        if row is None:
            raise self.over(claim)
        return row[0]

    def _lock_row(self, session: Session, row_id: Any) -> Row | None:
        return locked_row(session, self._table, row_id)


class Claims(HeldRows[Row]):
    """The rows of one table that a worker can claim and release."""

    def __init__(
        self,
        table: type[Row],
        states: Collection[str],
        *,
        columns: ClaimColumns = CLAIM_COLUMNS,
        lock: Callable[[Session, Any], Row | None] | None = None,
        ends_with_state: bool = False,
    ) -> None:
        """Rows in one of `states` can be claimed; the other parameters are those of `HeldRows`."""
        super().__init__(table, columns=columns, lock=lock, ends_with_state=ends_with_state)
        self._states = list(states)
        update = f"UPDATE {self.kind} SET"
        # Waits for a row lock instead of skipping it: a dispatcher that records a hint holds the lock, but no claim.
        self._claim = text(f"""
            {update} {self.sql.taken}
            WHERE id = (
                SELECT id FROM {self.kind}
                WHERE id = :id AND state = ANY(CAST(:states AS text[])) AND {self.sql.is_free}
                FOR NO KEY UPDATE
            )
            RETURNING {columns.fence} AS fence, state
        """)
        self._give_up = text(f"{update} {self.sql.given_up} WHERE {self.sql.is_held}")
        self._put_off = text(f"{update} {self.sql.put_off} WHERE {self.sql.is_held} RETURNING id")

    def claim(self, session: Session, row_id: str, *, lease: timedelta) -> Claim | None:
        """Claim a row, or return None where it has an owner."""
        owner = new_owner()
        values = {"id": row_id, "owner": owner, "states": self._states, "lease": lease}
        row = session.execute(self._claim, values).one_or_none()
        if row is None:
            return None
        return Claim(id=row_id, state=row.state, owner=owner, fence=row.fence)

    def give_up(self, session: Session, claim: Held) -> None:
        """Release the row, unless another worker has claimed it since."""
        session.execute(self._give_up, claim.guard)

    def put_off(self, session: Session, claim: Held, *, pause: timedelta) -> None:
        """Release the row, but let nobody claim it until `pause` is over. Raises FencedOutError."""
        self._require(session, self._put_off, claim, pause=pause)

    def free(self, row: Row) -> None:
        """Release a row that `lock` has returned."""
        self.columns.free(row)


def new_owner() -> str:
    """Return a new owner id for a claim."""
    return new_id("claim")
