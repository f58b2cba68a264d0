"""The words of claims in SQL: which statements take a row, renew and give up a claim, and ask whether it holds.

Statements of a table's own, such as a pick by fair order, are made of them. All of them go by the database's clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Boolean, ColumnElement, literal_column


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimColumns:
    """Which columns of a table say who has a row, and until when."""

    fence: str = "claim_fence"
    """Of the last claim; only grows."""
    owner: str = "claimed_by"
    """Who made that claim: a database that was restored gives out the same fence again."""
    until: str = "claimed_until"
    until_of_free: str = "NULL"
    """What `until` becomes when a row is given up, as an expression of SQL."""

    def free(self, row: object) -> None:
        """Let others take a locked row."""
        setattr(row, self.owner, None)
        setattr(row, self.until, None if self.until_of_free == "NULL" else literal_column(self.until_of_free))


CLAIM_COLUMNS = ClaimColumns()


class ClaimSql:
    """What statements say of the claims on one table, which they name as it is, without an alias.

    Assignments of an UPDATE: `taken`, of `owner` and `lease`; `renewed`, of `lease`; `given_up`; `put_off`, of `pause`.
    Conditions on a row: `is_held`, of a claim's `guard`; `is_free`, `is_over` and `is_put_off`.
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
    """Return a condition without values for a query of SQLAlchemy's."""
    return literal_column(sql, Boolean())
