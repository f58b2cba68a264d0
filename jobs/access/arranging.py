"""Set up a database's roles, owner and grants. Idempotent.

Each step is a short transaction of its own: services keep running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from sqlalchemy import Connection, text
from sqlalchemy.exc import ProgrammingError

from jobs.access import grants, roles
from jobs.access.rights import OWNER, ROLES
from jobs.database import connect, reported_as_service_error

_INSUFFICIENT_PRIVILEGE = "42501"


def arrange(database_url: str, *, logins: Iterable[str] = ()) -> str | None:
    """Set up roles, owner and grants with a login that may; return the reason where it may not, otherwise None.

    `logins` are URLs: a role of ours named there with a password gets that password. Raises ServiceError where others
    hold a table for too long: retry.
    """
    engine = connect(database_url)
    try:
        with reported_as_service_error(engine.url), engine.connect() as connection:
            refusal = _refused(connection, _arrange)
            if refusal is not None:
                return _why_one_role(connection, refusal)
            refusal = _refused(connection, partial(_set_passwords, logins=list(logins)))
            return (
                None
                if refusal is None
                else f"the passwords of the database roles are as they were ({refusal}): {_SET_THEM}"
            )
    finally:
        engine.dispose()


def _refused(connection: Connection, step: Callable[[Connection], None]) -> str | None:
    """Run a step; return Postgres' message where this login lacks the right, otherwise None."""
    try:
        step(connection)
    except ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) != _INSUFFICIENT_PRIVILEGE:
            raise
        return str(error.orig).splitlines()[0]
    finally:
        connection.rollback()
    return None


def _arrange(connection: Connection) -> None:
    with _alone(connection):
        if roles.missing_roles(connection):
            roles.make_roles(connection)
        if not connection.scalar(_MAY_ACT_AS_OWNER, {"owner": OWNER}):
            connection.exec_driver_sql(f"GRANT {OWNER} TO CURRENT_USER")
    with _alone(connection):
        foreign = roles.foreign_objects(connection)
    for what in foreign:
        with _alone(connection):
            roles.hand_over(connection, what)
    with _alone(connection):
        grants.grant(connection)
        grants.share_later_tables(connection)


def _set_passwords(connection: Connection, *, logins: list[str]) -> None:
    """Set passwords where the login may create roles; the owner, who may not, leaves them unchanged."""
    with _alone(connection):
        if connection.scalar(_MAKES_ROLES):
            roles.set_passwords(connection, logins)


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Run a transaction while nobody else sets up this database: Postgres fails concurrent changes of one entry."""
    with connection.begin():
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtextextended('database roles', 0))"))
        yield


def _why_one_role(connection: Connection, refusal: str) -> str:
    with connection.begin():
        user, missing = connection.scalar(text("SELECT current_user")), roles.missing_roles(connection)
    if user in ROLES:
        return f"no right was changed: {user} owns nothing. Set TOKENMILL_DATABASE_OWNER_URL to the owner"
    need = f"make {', '.join(missing)}" if missing else f"act as {OWNER}"
    return (
        f"the database works with one role for all, as before: {user} may not {need} ({refusal}). Run `tokenmill db "
        "upgrade` once with the TOKENMILL_DATABASE_OWNER_URL of a superuser, or of who has CREATEROLE and owns it"
    )


_SET_THEM = "set them as a superuser, with ALTER ROLE … PASSWORD"
_MAY_ACT_AS_OWNER = text("SELECT pg_has_role(current_user, :owner, 'USAGE')")
_MAKES_ROLES = text("SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user")
