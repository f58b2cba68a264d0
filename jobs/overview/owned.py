"""Queries of what tenants own: as many statements for twenty tenants as for one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

Owner = str | None
"""Owner of rows: a tenant, or None for all tenants together."""


class OwnedQuery:
    """A query of a table's rows by owner.

    In its SQL `{owners}` is the FROM item with the column `owner.id`, and `{is_theirs}` the condition for an owner's
    rows. It has to select `owner.id AS owner_id`.
    """

    def __init__(self, sql: str, *, table: str) -> None:
        of_tenants = "unnest(CAST(:tenant_ids AS text[])) AS owner (id)"
        self._of_tenants = text(sql.format(owners=of_tenants, is_theirs=f"{table}.tenant_id = owner.id"))
        self._of_all = text(sql.format(owners="(VALUES (CAST(NULL AS text))) AS owner (id)", is_theirs="TRUE"))

    def rows(self, session: Session, owners: Collection[Owner], **values: object) -> dict[Owner, list[Row[Any]]]:
        """Return the rows of each of these owners, in the query's order."""
        rows_by_owner: dict[Owner, list[Row[Any]]] = {owner: [] for owner in owners}
        tenant_ids = [owner for owner in owners if owner is not None]
        if tenant_ids:
            _add(rows_by_owner, session.execute(self._of_tenants, {**values, "tenant_ids": tenant_ids}).all())
        if None in rows_by_owner:
            _add(rows_by_owner, session.execute(self._of_all, values).all())
        return rows_by_owner


def _add(rows_by_owner: Mapping[Owner, list[Row[Any]]], rows: Sequence[Row[Any]]) -> None:
    for row in rows:
        rows_by_owner[row.owner_id].append(row)
