"""Arranges who may do what in a database: the roles, the owner of what is there, and the grants. Safe to repeat.

Each step is a transaction of its own, and short: services run on meanwhile, those of the release before, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, text
from sqlalchemy.exc import ProgrammingError

from jobs.access import grants, roles
from jobs.access.rights import OWNER
from jobs.database import connect, reported_as_service_error

_INSUFFICIENT_PRIVILEGE = "42501"


def arrange(database_url: str, *, logins: Iterable[str] = ()) -> str | None:
    """Give the database its roles, owner and grants, as a login that may; return why not where it may not, else None.

    `logins` are URLs: where one names a role of ours with a password, the role has it from then on. Raises ServiceError
    where others hold a table for too long: call it again.
    """
    engine = connect(database_url)
    try:
        with reported_as_service_error(engine.url), engine.connect() as connection:
            try:
                _arrange(connection, list(logins))
            except ProgrammingError as error:
                if getattr(error.orig, "sqlstate", None) != _INSUFFICIENT_PRIVILEGE:
                    raise
                connection.rollback()
                return _refusal(connection, str(error.orig).splitlines()[0])
    finally:
        engine.dispose()
    return None


def _arrange(connection: Connection, logins: list[str]) -> None:
    with connection.begin():
        if roles.missing_roles(connection):
            roles.make_roles(connection)
        if not connection.scalar(_MAY_ACT_AS_OWNER, {"owner": OWNER}):
            connection.exec_driver_sql(f"GRANT {OWNER} TO CURRENT_USER")
    with connection.begin():
        foreign = roles.foreign_objects(connection)
    for what in foreign:
        with connection.begin():
            roles.hand_over(connection, what)
    with connection.begin():
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtextextended('grants', 0))"))
        grants.grant(connection)
        grants.share_later_tables(connection)
    if logins and connection.scalar(_MAY_SET_PASSWORDS):
        connection.rollback()
        with connection.begin():
            roles.set_passwords(connection, logins)


def _refusal(connection: Connection, said: str) -> str:
    with connection.begin():
        user, missing = connection.scalar(text("SELECT current_user")), roles.missing_roles(connection)
    need = f"make {', '.join(missing)}" if missing else f"act as {OWNER}"
    return (
        f"the database works with one role for all, as before: {user} may not {need} ({said}). Run `tokenmill db "
        "upgrade` once with the TOKENMILL_DATABASE_OWNER_URL of a superuser, or of who has CREATEROLE and owns it"
    )


_MAY_ACT_AS_OWNER = text("SELECT pg_has_role(current_user, :owner, 'USAGE')")
_MAY_SET_PASSWORDS = text("SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user")
