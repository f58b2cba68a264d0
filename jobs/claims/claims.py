"""Fenced claims on the rows of a table: which worker has one, and until when, on the database's clock.

A claim ends when it is given up, or when its time is over and another worker takes the row; where claims end with the
state, also when the row moves on. Whoever has lost one hears of it by FencedOutError and can write nothing under it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy import Executable, select, text
from sqlalchemy.orm import Session

from jobs.claims.statements import CLAIM_COLUMNS, ClaimColumns, ClaimSql
from jobs.errors import FencedOutError
from jobs.ids import new_id
from jobs.tables.base import Base

Row = TypeVar("Row", bound=Base)


class Held(Protocol):
    """What is known of a row by the worker that claimed it."""

    @property
    def guard(self) -> Mapping[str, Any]:
        """Return `id`, `fence`, `owner` and `state`: what `ClaimSql.is_held` asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A row that one worker has."""

    id: str
    state: str
    """In which it was claimed."""
    owner: str
    fence: int
    """Good for this claim only: the next one has a higher number."""

    @property
    def guard(self) -> Mapping[str, Any]:
        return {"id": self.id, "fence": self.fence, "owner": self.owner, "state": self.state}


class HeldRows(Generic[Row]):
    """The rows of one table that workers have: a claim is renewed, asked for and used."""

    def __init__(
        self,
        table: type[Row],
        *,
        columns: ClaimColumns = CLAIM_COLUMNS,
        lock: Callable[[Session, Any], Row | None] | None = None,
        ends_with_state: bool = False,
    ) -> None:
        """`lock` returns a row, fresh and locked until the transaction ends.

        Where a claim `ends_with_state`, it is over once its row has moved on.
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

    def renew(self, session: Session, held: Held, *, lease: timedelta) -> str:
        """Let a claim last for `lease` from now on; return the row's state. Raises FencedOutError where it is over."""
        return str(self._require(session, self._renew, held, lease=lease))

    def confirm(self, session: Session, held: Held) -> None:
        """Raise FencedOutError where a claim is over, or its time is."""
        self._require(session, self._confirm, held)

    def hold(self, session: Session, held: Held) -> None:
        """Lock the row of a claim until the transaction ends. Raises FencedOutError."""
        self._require(session, self._hold, held)

    def lock(self, session: Session, held: Held) -> Row:
        """Return the row of a claim, fresh and locked until the transaction ends. Raises FencedOutError."""
        row = self._lock(session, held.guard["id"])
        if row is None or not self._is_held(row, held.guard):
            raise self.over(held)
        return row

    def over(self, held: Held) -> FencedOutError:
        """Return what says that a claim is over."""
        guard = held.guard
        return FencedOutError(
            f"{self.kind} {guard['id']} is no longer claimed by {guard['owner']} under fence {guard['fence']}"
        )

    def _require(self, session: Session, statement: Executable, held: Held, **values: object) -> Any:
        """Return what a statement returns of the row that is held. Raises FencedOutError where there is none."""
        row = session.execute(statement, {**held.guard, **values}).one_or_none()
        if row is None:
            raise self.over(held)
        return row[0]

    def _is_held(self, row: Any, guard: Mapping[str, Any]) -> bool:
        holder = (getattr(row, self.columns.fence), getattr(row, self.columns.owner))
        if holder != (guard["fence"], guard["owner"]):
            return False
        return not self._ends_with_state or row.state == guard["state"]

    def _lock_row(self, session: Session, row_id: Any) -> Row | None:
        query = select(self._table).where(self._table.__table__.c.id == row_id).with_for_update(key_share=True)
        return session.scalar(query, execution_options={"populate_existing": True})


class Claims(HeldRows[Row]):
    """The rows of one table that a worker may take, and give up to the others."""

    def __init__(
        self,
        table: type[Row],
        states: Collection[str],
        *,
        columns: ClaimColumns = CLAIM_COLUMNS,
        lock: Callable[[Session, Any], Row | None] | None = None,
        ends_with_state: bool = False,
    ) -> None:
        """Rows in one of `states` can be claimed; the rest as for `HeldRows`."""
        super().__init__(table, columns=columns, lock=lock, ends_with_state=ends_with_state)
        self._states = list(states)
        update = f"UPDATE {self.kind} SET"
        # It waits for whoever has the row locked: a dispatcher that notes a hint does not have it, a worker claims it.
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
        """Take a row that nobody has, or None."""
        owner = new_owner()
        values = {"id": row_id, "owner": owner, "states": self._states, "lease": lease}
        taken = session.execute(self._claim, values).one_or_none()
        if taken is None:
            return None
        return Claim(id=row_id, state=taken.state, owner=owner, fence=taken.fence)

    def give_up(self, session: Session, held: Held) -> None:
        """Let others take the row, unless they have it already."""
        session.execute(self._give_up, held.guard)

    def put_off(self, session: Session, held: Held, *, pause: timedelta) -> None:
        """Give the row up, to be taken by nobody before `pause` is over. Raises FencedOutError."""
        self._require(session, self._put_off, held, pause=pause)

    def free(self, row: Row) -> None:
        """Let others take a row that `lock` has returned."""
        self.columns.free(row)


def new_owner() -> str:
    """Return a name for whoever claims next."""
    return new_id("claim")
