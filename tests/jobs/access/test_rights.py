"""Tests that each database role has exactly the rights of its table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.orm import Session

from features import load_tables
from jobs import partitions
from jobs.access import FUNCTIONS, OWNER, PREPARE, ROLES, SCALER, SERVICE, TABLES, Right, grants, standing_of
from jobs.database import connect, sessions
from jobs.partitions import is_partition_name
from jobs.tables import Base
from tests.database_roles import as_owner, as_prepare, as_scaler, as_service, as_superuser
from tests.jobs.access.roles_page import PAGE, with_tables

load_tables()

Login = Callable[[str], str]
DAY = date(2024, 2, 28)


@pytest.fixture
def login(database_url: str) -> Iterator[Callable[[Login], Connection]]:
    """Return a function that logs in to the test's database."""
    opened: list[Connection] = []

    def log_in(as_whom: Login) -> Connection:
        engine = connect(as_whom(database_url))
        opened.append(engine.connect())
        return opened[-1]

    yield log_in
    for connection in opened:
        connection.close()
        connection.engine.dispose()


def test_every_table_and_function_has_its_line(login: Callable[[Login], Connection]) -> None:
    connection = login(as_owner)
    names = connection.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"))
    assert {name for name in names if not is_partition_name(name)} == TABLES.keys()
    assert TABLES.keys() == Base.metadata.tables.keys() | {"alembic_version"}
    functions = "SELECT format('%s(%s)', proname, oidvectortypes(proargtypes)) FROM pg_proc WHERE pronamespace = "
    assert set(connection.scalars(text(f"{functions} 'public'::regnamespace"))) == FUNCTIONS.keys()


def test_the_schema_has_these_rights_and_no_other(login: Callable[[Login], Connection]) -> None:
    """Queried from Postgres, so that rights by PUBLIC, by a column or by another role count, too."""
    connection = login(as_superuser)
    rows = connection.execute(HAS, {"roles": [SERVICE, PREPARE, SCALER]}).all()
    has = {(row.role, row.name, row.privilege) for row in rows if row.has}
    assert has == grants.wanted(connection)
    asked = {row.privilege for row in rows} - {right.value for right in Right}
    assert {"TRUNCATE", "REFERENCES", "TRIGGER", "MAINTAIN", "EXECUTE"} <= asked


HAS = text("""
    SELECT role, relname AS name, privilege, has_table_privilege(role, pg_class.oid, privilege)
        OR CASE WHEN privilege IN ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES')
            THEN has_any_column_privilege(role, pg_class.oid, privilege) ELSE false END AS has
    FROM pg_class, unnest(CAST(:roles AS text[])) AS role,
        unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER,MAINTAIN}'::text[]) AS privilege
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f')
    UNION ALL
    SELECT role, relname, privilege, has_sequence_privilege(role, pg_class.oid, privilege)
    FROM pg_class, unnest(CAST(:roles AS text[])) AS role, unnest('{SELECT,USAGE,UPDATE}'::text[]) AS privilege
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'S'
    UNION ALL
    SELECT role, format('%s(%s)', proname, oidvectortypes(proargtypes)), 'EXECUTE',
        has_function_privilege(role, pg_proc.oid, 'EXECUTE') AND prorettype <> 'trigger'::regtype
    FROM pg_proc, unnest(CAST(:roles AS text[])) AS role WHERE pronamespace = 'public'::regnamespace
""")


def test_all_is_the_owners_partitions_too(session: Session) -> None:
    partitions.ensure_result_partition(session, DAY)
    owners = """
        SELECT relowner::regrole::text FROM pg_class WHERE relnamespace = 'public'::regnamespace
        UNION SELECT proowner::regrole::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace
        UNION SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'public'
    """
    assert session.scalars(text(owners)).all() == [OWNER]


def test_no_role_has_a_right_over_the_server_or_another_role(login: Callable[[Login], Connection]) -> None:
    powers = """
        SELECT rolname FROM pg_roles WHERE rolname = ANY(:roles) AND (
            rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls
            OR EXISTS (SELECT FROM pg_auth_members WHERE member = pg_roles.oid)
        )
    """
    assert login(as_superuser).scalars(text(powers), {"roles": list(ROLES)}).all() == []


OF_THE_SERVER = [
    "COPY tenant FROM PROGRAM 'id'",
    "COPY tenant TO '/tmp/tenants'",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT lo_import('/etc/passwd')",
    "CREATE ROLE mine SUPERUSER",
    "ALTER SYSTEM SET log_statement = 'none'",
    "SET session_replication_role = replica",
    "SET ROLE tokenmill",
    "CREATE EXTENSION file_fdw",
    "CREATE FUNCTION mine() RETURNS int LANGUAGE c AS 'libc', 'getpid'",
    "SELECT rolpassword FROM pg_authid",
]
OF_THE_OWNER = [
    "ALTER TABLE admin_log DISABLE TRIGGER ALL",
    "DROP TRIGGER admin_log_keeps_rows ON admin_log",
    "CREATE OR REPLACE FUNCTION refuse_change_of_admin_log() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'",
    "UPDATE admin_log SET actor = 'nobody'",
    "DELETE FROM admin_log",
    "TRUNCATE admin_log",
    "DELETE FROM deletion",
    "UPDATE result SET is_error = false",
    "UPDATE alembic_version SET version_num = '0001'",
    "CREATE TABLE mine (id int)",
    "CREATE TRIGGER mine BEFORE INSERT ON batch EXECUTE FUNCTION refuse_change_of_admin_log()",
    "CREATE OR REPLACE FUNCTION make_result_partition(date) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
    "CREATE SCHEMA mine",
    "DROP TABLE batch",
    "ALTER TABLE tenant ADD COLUMN mine text",
    "CREATE INDEX ON tenant (weight)",
    "DELETE FROM batch",
    "SET ROLE tokenmill_owner",
]
OF_SERVICES = [
    "SELECT key_hash FROM api_key",
    "SELECT * FROM webhook_endpoint",
    "SELECT * FROM admin_log",
    "INSERT INTO admin_log (actor, action, subject) VALUES ('a', 'b', 'c')",
    "INSERT INTO tenant (id, name) VALUES ('a', 'b')",
    "UPDATE tenant SET weight = 9",
    "INSERT INTO batch (id) VALUES ('a')",
    "DELETE FROM result",
    "DELETE FROM ledger",
    "UPDATE model SET input_price_picos = 0",
    "SELECT make_result_partition('2024-02-28')",
    "SELECT drop_result_partition('2024-02-28')",
    "SET ROLE tokenmill_service",
]
OF_ANYONE_WITH_A_TABLE = [
    "SELECT name FROM model",
    "SELECT * FROM scaling",
    "SELECT * FROM due_work",
    "SELECT * FROM serving_rate",
    "SELECT * FROM worker",
    "SELECT version_num FROM alembic_version",
]


@pytest.mark.parametrize(
    ("as_whom", "statements"),
    [
        (as_owner, OF_THE_SERVER),
        (as_service, OF_THE_SERVER + OF_THE_OWNER),
        (as_prepare, OF_THE_SERVER + OF_THE_OWNER + OF_SERVICES),
        (as_scaler, OF_THE_SERVER + OF_THE_OWNER + OF_SERVICES + OF_ANYONE_WITH_A_TABLE),
    ],
)
def test_a_role_is_refused_what_is_anothers(
    login: Callable[[Login], Connection], as_whom: Login, statements: list[str]
) -> None:
    connection, passed = login(as_whom).execution_options(isolation_level="AUTOCOMMIT"), {}
    for statement in statements:
        try:
            connection.exec_driver_sql(statement)
            passed[statement] = "done"
        except DBAPIError as error:
            state = getattr(error.orig, "sqlstate", None)
            if state != "42501":
                passed[statement] = f"{state} {error.orig}"
    assert passed == {}


@pytest.mark.parametrize("as_whom", [as_service, as_prepare])
def test_a_row_of_a_partition_is_reached_by_its_table_alone(
    login: Callable[[Login], Connection], session: Session, as_whom: Login
) -> None:
    partitions.ensure_result_partition(session, DAY)
    session.commit()
    connection = login(as_whom)
    assert connection.scalars(text("SELECT line FROM result WHERE batch_day = '2024-02-28'")).all() == []
    with pytest.raises(ProgrammingError, match="permission denied for table result_20240228"):
        connection.execute(text("SELECT line FROM result_20240228"))


@pytest.mark.parametrize(
    ("as_whom", "is_superuser", "is_owner", "is_plain"),
    [
        (as_superuser, True, True, False),
        (as_owner, False, True, False),
        (as_service, False, False, True),
        (as_prepare, False, False, True),
        (as_scaler, False, False, True),
    ],
)
def test_a_login_knows_what_it_may_do(
    login: Callable[[Login], Connection], as_whom: Login, is_superuser: bool, is_owner: bool, is_plain: bool
) -> None:
    with sessions(login(as_whom).engine)() as session:
        found = standing_of(session)
    assert (found.is_superuser, found.is_owner, found.is_plain) == (is_superuser, is_owner, is_plain)
    assert found.are_roles_there


def test_the_tables_of_the_page_are_what_the_generator_writes() -> None:
    found = PAGE.read_text(encoding="utf-8")
    assert found == with_tables(found), "run: python -m tests.jobs.access.roles_page"
