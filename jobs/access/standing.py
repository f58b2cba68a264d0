"""The login of a connection: a plain role, the owner, or a superuser."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.access.rights import OWNER, ROLES


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a login may do beyond the work of a service."""

    login: str
    is_superuser: bool
    """It may run programs on the server, and read and write the server's files."""
    is_owner: bool
    """It may drop tables, and disable the triggers that protect the admin log."""
    are_roles_there: bool
    """Whether our roles exist."""

    @property
    def is_plain(self) -> bool:
        return not (self.is_superuser or self.is_owner)


def standing_of(session: Session) -> Standing:
    """Return the standing of the session's own login."""
    row = session.execute(_STANDING, {"roles": list(ROLES), "owner": OWNER}).one()
    return Standing(
        login=row.login, is_superuser=row.is_superuser, is_owner=row.is_owner, are_roles_there=row.are_roles_there
    )


_STANDING = text("""
    SELECT current_user AS login, rolsuper AS is_superuser,
        coalesce((SELECT pg_has_role(current_user, relowner, 'USAGE') FROM pg_class
            WHERE oid = to_regclass('alembic_version')), false) AS is_owner,
        (SELECT bool_and(to_regrole(name) IS NOT NULL) FROM unnest(CAST(:roles AS text[])) AS name) AS are_roles_there
    FROM pg_roles WHERE rolname = current_user
""")
