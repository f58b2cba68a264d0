"""Grant the rights of the table of rights, and revoke all others."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, text

from jobs.access.rights import FUNCTIONS, OWNER, PREPARE, SCALER, SERVICE, TABLES
from jobs.database import head_revision

Granted = set[tuple[str, str, str]]
"""Role, table or function, right."""

_GRANTEES = (SERVICE, PREPARE, SCALER)


def granted(connection: Connection) -> Granted:
    """Return the current rights of the non-owner roles in our schema, including partitions and other tables."""
    return {(row.role, row.name, row.right) for row in connection.execute(_GRANTED, {"roles": list(_GRANTEES)})}


def wanted(connection: Connection) -> Granted:
    """Return the intended rights on the tables and functions that the schema has; an older one has fewer."""
    present = set(connection.scalars(_PRESENT))
    return {entry for entry in _all_wanted() if entry[1] in present}


def grant(connection: Connection) -> None:
    """Change the former into the latter, in the caller's transaction: running services never lack a right.

    In the schema of a later release nothing is revoked: its services may be running.
    """
    place = connection.scalar(text("SELECT format('%I', current_schema())"))
    connection.exec_driver_sql(f"REVOKE CREATE ON SCHEMA {place} FROM PUBLIC")
    connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {place} TO {', '.join(_GRANTEES)}")
    has, wants = granted(connection), wanted(connection)
    for role, name, right in sorted(has - wants if _is_known(connection) else ()):
        connection.exec_driver_sql(f"REVOKE {right} ON {_kind(name)} {place}.{name} FROM {role}")
    for role, name, right in sorted(wants - has):
        connection.exec_driver_sql(f"GRANT {right} ON {_kind(name)} {place}.{name} TO {role}")


def _is_known(connection: Connection) -> bool:
    """Return whether the schema is of this release or an earlier one."""
    return bool(connection.scalar(text("SELECT version_num FROM alembic_version")) <= head_revision())


def share_later_tables(connection: Connection) -> None:
    """Give the owner access to tables that this login creates later by hand: a backup reads every table."""
    if connection.scalar(text("SELECT current_user")) != OWNER:
        place = connection.scalar(text("SELECT format('%I', current_schema())"))
        connection.exec_driver_sql(f"ALTER DEFAULT PRIVILEGES IN SCHEMA {place} GRANT ALL ON TABLES TO {OWNER}")


def _all_wanted() -> Iterator[tuple[str, str, str]]:
    for table, rights in TABLES.items():
        for role in _GRANTEES:
            yield from ((role, table, right.value) for right in rights.of(role))
    for function, roles in FUNCTIONS.items():
        yield from ((role, function, "EXECUTE") for role in roles)


def _kind(name: str) -> str:
    return "FUNCTION" if name.endswith(")") else "TABLE"


_GRANTED = text("""
    SELECT rolname AS role, name, privilege_type AS right FROM (
        SELECT relname AS name, relacl AS acl FROM pg_class WHERE relnamespace = current_schema()::regnamespace
        UNION ALL
        SELECT format('%s(%s)', proname, oidvectortypes(proargtypes)), proacl FROM pg_proc
        WHERE pronamespace = current_schema()::regnamespace
    ) AS ours, aclexplode(acl) AS given JOIN pg_roles ON pg_roles.oid = given.grantee
    WHERE rolname = ANY(:roles)
""")

_PRESENT = text("""
    SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace
    UNION ALL
    SELECT format('%s(%s)', proname, oidvectortypes(proargtypes)) FROM pg_proc
    WHERE pronamespace = current_schema()::regnamespace
""")
