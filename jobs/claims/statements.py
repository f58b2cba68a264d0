"""SQL of claims: assignments and conditions that take, renew, release and check a claim.

Tables that need statements of their own, such as a pick by fair order, build them from these. All use the database's
clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Boolean, ColumnElement, literal_column


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimColumns:
    """The columns of a table that hold the owner of a row and the end of its claim."""

    fence: str = "claim_fence"
    """Fence of the last claim; only grows."""
    owner: str = "claimed_by"
    """Owner of that claim. A restored database issues the same fences again; the owner tells such claims apart."""
    until: str = "claimed_until"
    until_of_free: str = "NULL"
    """Value of `until` after a release, as an SQL expression."""

    def free(self, row: object) -> None:
        """Release a locked row."""
        setattr(row, self.owner, None)
        setattr(row, self.until, None if self.until_of_free == "NULL" else literal_column(self.until_of_free))


CLAIM_COLUMNS = ClaimColumns()


class ClaimSql:
    """SQL fragments for the claims on one table, which statements must name without an alias.

    Assignments of an UPDATE: `taken` with the parameters `owner` and `lease`; `renewed` with `lease`; `given_up`;
    `put_off` with `pause`. Conditions on a row: `is_held` with the parameters of a claim's `guard`; `is_free`,
    `is_over` and `is_put_off`.
    """

    def __init__(self, table: str, columns: ClaimColumns = CLAIM_COLUMNS, *, ends_with_state: bool = False) -> None:
        fence, owner, until = (f"{table}.{column}" for column in (columns.fence, columns.owner, columns.until))
        self.renewed = f"{columns.until} = clock_timestamp() + CAST(:lease AS interval)"
        self.taken = f"{columns.fence} = {fence} + 1, {columns.owner} = :owner, {self.renewed}"
        self.given_up = f"{columns.owner} = NULL, {columns.until} = {columns.until_of_free}"
        self.put_off = f"{columns.owner} = NULL, {columns.until} = clock_timestamp() + CAST(:pause AS interval)"
        self.is_over = f"{until} <= clock_timestamp()"
        self.is_free = f"({until} IS NULL OR {self.is_over})"
        self.is_put_off = f"({owner} IS NULL AND {until} > clock_timestamp())"
        self.is_held = f"{table}.id = :id AND {fence} = :fence AND {owner} = :owner"
        if ends_with_state:
            self.is_held += f" AND {table}.state = :state"


def condition(sql: str) -> ColumnElement[bool]:
    """Return a condition without parameters for an SQLAlchemy query."""
    return literal_column(sql, Boolean())
