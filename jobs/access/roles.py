"""Create the database roles where the login may, set their passwords, and hand the schema to its owner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import psycopg
from sqlalchemy import Connection, text

from jobs.access.rights import FUNCTIONS, OWNER, ROLES, TABLES
from jobs.database.connections import parse_url


def make_roles(connection: Connection) -> None:
    """Create the missing roles: they may log in, and do nothing else until granted.

    Roles belong to the server, and are common to all of its databases. Concurrent calls create a role once.
    """
    for role in ROLES:
        connection.execute(text(_MAKE_ROLE.format(role=role)))


def missing_roles(connection: Connection) -> list[str]:
    query = text("SELECT name FROM unnest(CAST(:names AS text[])) AS name WHERE to_regrole(name) IS NULL")
    return list(connection.scalars(query, {"names": list(ROLES)}))


def set_passwords(connection: Connection, urls: Iterable[str]) -> None:
    """Give each of our roles named in a URL the password from the URL. Only a hash of it is sent."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    for url in map(parse_url, urls):
        if url.username in ROLES and url.password:
            role = url.username.encode()
            verifier = driver.pgconn.encrypt_password(str(url.password).encode(), role, b"scram-sha-256")
            connection.exec_driver_sql(f"ALTER ROLE {url.username} PASSWORD '{verifier.decode()}'")


def foreign_objects(connection: Connection) -> Sequence[str]:
    """Return our objects that the owner does not own, as in `ALTER …`: the schema, then tables and functions."""
    values = {"owner": OWNER, "tables": list(TABLES), "functions": [name.partition("(")[0] for name in FUNCTIONS]}
    return connection.scalars(_FOREIGN, values).all()


def hand_over(connection: Connection, what: str) -> None:
    connection.exec_driver_sql(f"ALTER {what} OWNER TO {OWNER}")


_MAKE_ROLE = """
    DO $do$ BEGIN
        IF to_regrole('{role}') IS NULL THEN
            CREATE ROLE {role} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;
        END IF;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
    END $do$
"""

_FOREIGN = text("""
    WITH place AS (SELECT oid, nspname, nspowner FROM pg_namespace WHERE nspname = current_schema()),
        owner AS (SELECT oid FROM pg_roles WHERE rolname = :owner)
    SELECT format('SCHEMA %I', nspname) AS what, 0 AS turn FROM place, owner WHERE nspowner <> owner.oid
    UNION ALL
    SELECT format('TABLE %I.%I', nspname, relname), 1 FROM place, owner, pg_class
    WHERE relnamespace = place.oid AND relkind IN ('r', 'p') AND relowner <> owner.oid
        AND (relname = ANY(:tables) OR relname ~ '^result_[0-9]{8}$')
    UNION ALL
    SELECT format('FUNCTION %I.%I(%s)', nspname, proname, oidvectortypes(proargtypes)), 2
    FROM place, owner, pg_proc WHERE pronamespace = place.oid AND proowner <> owner.oid AND proname = ANY(:functions)
    ORDER BY turn, what
""")
