"""Queries of what tenants own: as many statements for twenty of them as for one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

Owner = str | None
"""Whose rows: a tenant's, or with None those of all tenants together."""


class OwnedQuery:
    """A query of a table's rows by their owners.

    In its SQL `{owners}` is what they are read from, with the column `owner.id`, and `{is_theirs}` says which rows are
    an owner's. It has to select `owner.id AS owner_id`.
    """

    def __init__(self, sql: str, *, table: str) -> None:
        of_tenants = "unnest(CAST(:tenant_ids AS text[])) AS owner (id)"
        self._of_tenants = text(sql.format(owners=of_tenants, is_theirs=f"{table}.tenant_id = owner.id"))
        self._of_all = text(sql.format(owners="(VALUES (CAST(NULL AS text))) AS owner (id)", is_theirs="TRUE"))

    def rows(self, session: Session, owners: Collection[Owner], **values: object) -> dict[Owner, list[Row[Any]]]:
        """Return the rows of each of these owners, in the query's order."""
        found: dict[Owner, list[Row[Any]]] = {owner: [] for owner in owners}
        tenant_ids = [owner for owner in owners if owner is not None]
        if tenant_ids:
            _add(found, session.execute(self._of_tenants, {**values, "tenant_ids": tenant_ids}).all())
        if None in found:
            _add(found, session.execute(self._of_all, values).all())
        return found


def _add(found: Mapping[Owner, list[Row[Any]]], rows: Sequence[Row[Any]]) -> None:
    for row in rows:
        found[row.owner_id].append(row)
