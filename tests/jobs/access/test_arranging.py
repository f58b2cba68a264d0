"""Tests that `db upgrade` gives existing databases their roles, owner and grants, and reports where it may not."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Connection, text
from sqlalchemy.orm import Session

from jobs import partitions
from jobs.access import OWNER, PREPARE, ROLES, SERVICE, arrange, grants, roles
from jobs.database import connect, sessions, transaction, upgrade
from jobs.errors import ServiceError
from tests import old_databases
from tests.database_roles import as_owner, as_prepare, as_service, as_superuser

DAY = date(2024, 2, 28)


@pytest.fixture
def old_database(empty_database: str) -> str:
    """The URL of a database from before roles, all created by one superuser, with a day of results."""
    old_databases.load(empty_database, "0061")
    engine = connect(empty_database)
    with engine.begin() as connection:
        make_day_by_hand(connection, DAY)
        connection.execute(text("INSERT INTO result VALUES ('2024-02-28', 'b', 0, 1, 200, false, 0, 0, 0, '{}')"))
        connection.execute(text("CREATE TABLE notes (id int)"))
    engine.dispose()
    return empty_database


def make_day_by_hand(connection: Connection, day: date) -> None:
    """Make a day without the function for it, as a superuser may."""
    name = partitions.partition_name(day)
    connection.execute(text(f"CREATE TABLE {name} (LIKE result INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"))
    bounds = f"FROM ('{day}') TO ('{date.fromordinal(day.toordinal() + 1)}')"
    connection.execute(text(f"ALTER TABLE result ATTACH PARTITION {name} FOR VALUES {bounds}"))


@pytest.fixture
def open_as(request: pytest.FixtureRequest) -> Callable[[str], Connection]:
    def open_(url: str) -> Connection:
        engine = connect(url)
        connection = engine.connect()
        request.addfinalizer(engine.dispose)
        request.addfinalizer(connection.close)
        return connection

    return open_


def test_a_database_of_one_superuser_goes_on_with_the_plain_role(
    old_database: str, open_as: Callable[[str], Connection]
) -> None:
    upgrade(old_database)
    assert arrange(old_database) is None
    service = open_as(as_service(old_database))
    assert service.scalar(text("SELECT count(*) FROM tenant")) == 2
    assert service.scalar(text("SELECT count(*) FROM result WHERE batch_day = '2024-02-28'")) == 1
    with Session(service) as session:
        assert partitions.ensure_result_partition(session, date(2024, 3, 1))
        assert partitions.drop_partition(session, DAY), "which a superuser has made"
        session.commit()
    owner = open_as(as_owner(old_database))
    assert grants.granted(owner) == grants.wanted(owner)
    assert owner.scalar(text("SELECT relowner::regrole::text FROM pg_class WHERE relname = 'notes'")) == "tokenmill"


def test_a_day_that_its_superuser_makes_later_is_the_owners_and_the_services_too(
    old_database: str, open_as: Callable[[str], Connection]
) -> None:
    upgrade(old_database)
    assert arrange(old_database) is None
    before = open_as(old_database)
    make_day_by_hand(before, date(2024, 3, 2))
    before.execute(text("INSERT INTO result VALUES ('2024-03-02', 'b', 0, 1, 200, false, 0, 0, 0, '{}')"))
    before.commit()
    owner = open_as(as_owner(old_database))
    assert owner.scalar(text("SELECT count(*) FROM result_20240302")) == 1, "a backup reads each day by itself"
    owner.rollback()
    service = open_as(as_service(old_database))
    assert service.scalar(text("SELECT count(*) FROM result WHERE batch_day = '2024-03-02'")) == 1
    with Session(service) as session:
        assert partitions.drop_partition(session, date(2024, 3, 2))
        session.commit()


def test_to_arrange_again_changes_nothing_and_mends_what_was_changed(
    database_url: str, open_as: Callable[[str], Connection]
) -> None:
    superuser = open_as(as_superuser(database_url))
    with superuser.begin():
        superuser.execute(text(f"GRANT SELECT, DELETE ON api_key TO {PREPARE}"))
        superuser.execute(text(f"REVOKE INSERT ON batch FROM {SERVICE}"))
        superuser.execute(text("ALTER TABLE tenant OWNER TO tokenmill"))
        assert grants.granted(superuser) != grants.wanted(superuser)
    for url in (as_superuser(database_url), as_owner(database_url)):
        assert arrange(url) is None
        with superuser.begin():
            assert grants.granted(superuser) == grants.wanted(superuser)
            assert roles.foreign_objects(superuser) == []


def test_in_the_schema_of_a_later_release_its_rights_stay(
    database_url: str, open_as: Callable[[str], Connection]
) -> None:
    superuser = open_as(as_superuser(database_url))
    with superuser.begin():
        superuser.execute(text("UPDATE alembic_version SET version_num = '9998'"))
        superuser.execute(text("CREATE TABLE later (id int)"))
        superuser.execute(text(f"GRANT SELECT ON later, api_key TO {PREPARE}"))
        superuser.execute(text(f"REVOKE INSERT ON batch FROM {SERVICE}"))
    assert arrange(as_superuser(database_url)) is None
    with superuser.begin():
        more = grants.granted(superuser) - grants.wanted(superuser)
        assert more == {(PREPARE, "later", "SELECT"), (PREPARE, "api_key", "SELECT")}
        assert grants.wanted(superuser) <= grants.granted(superuser)


def test_the_owner_migrates_without_any_other_right(empty_database: str, open_as: Callable[[str], Connection]) -> None:
    old_databases.load(empty_database, "0069")
    owner = as_owner(empty_database)
    upgrade(owner)
    assert arrange(owner) is None
    connection = open_as(owner)
    assert grants.granted(connection) == grants.wanted(connection)


@pytest.fixture
def managed(empty_database: str) -> Iterator[Callable[[str], str]]:
    """Give the empty database to an operator who is not a superuser, with these attributes; return its URL for them."""
    engine = connect(empty_database)
    with engine.begin() as connection:
        roles.make_roles(connection)  # roles are a server's: those of other databases may have made them
    engine.dispose()
    administration = psycopg.connect(empty_database, autocommit=True)
    database = sql.Identifier(str(administration.info.dbname))

    def give(attributes: str) -> str:
        administration.execute(f"CREATE ROLE managed LOGIN {attributes}")
        administration.execute(sql.SQL("ALTER DATABASE {} OWNER TO managed").format(database))
        if "CREATEROLE" in attributes.split():  # as for the role's creator
            administration.execute(f"GRANT {', '.join(ROLES)} TO managed WITH ADMIN OPTION, INHERIT FALSE, SET FALSE")
        return empty_database.replace("tokenmill@", "managed@")

    yield give
    administration.execute(sql.SQL("ALTER DATABASE {} OWNER TO tokenmill").format(database))
    administration.execute("DROP OWNED BY managed CASCADE")
    administration.execute("DROP ROLE managed")
    administration.close()


def test_who_may_make_roles_and_owns_the_database_needs_no_superuser(
    managed: Callable[[str], str], open_as: Callable[[str], Connection]
) -> None:
    url = managed("CREATEROLE")
    upgrade(url)
    assert arrange(url) is None
    assert arrange(url) is None
    connection = open_as(url)
    assert grants.granted(connection) == grants.wanted(connection)
    with transaction(sessions(open_as(as_service(url)).engine)) as session:
        assert partitions.ensure_result_partition(session, DAY)


def test_who_may_not_goes_on_with_one_role_and_is_told_what_is_needed(
    managed: Callable[[str], str], open_as: Callable[[str], Connection]
) -> None:
    url = managed("NOCREATEROLE")
    upgrade(url)
    refusal = arrange(url)
    assert refusal is not None
    assert all(word in refusal for word in ("managed", OWNER, "TOKENMILL_DATABASE_OWNER_URL"))
    connection = open_as(url)
    assert grants.granted(connection) == set()
    with transaction(sessions(connection.engine)) as session:
        assert partitions.ensure_result_partition(session, DAY)
        assert partitions.drop_partition(session, DAY)


def test_a_service_arranges_nothing_and_names_who_does(database_url: str) -> None:
    refusal = arrange(database_url)
    assert refusal is not None
    assert all(word in refusal for word in (SERVICE, "TOKENMILL_DATABASE_OWNER_URL"))


def test_what_a_role_is_not_granted_is_a_sentence_that_names_the_remedy(database_url: str) -> None:
    engine = connect(as_prepare(database_url))
    with (
        pytest.raises(ServiceError, match=r"refuses this to tokenmill_prepare.*TOKENMILL_DATABASE_OWNER_URL"),
        transaction(sessions(engine)) as session,
    ):
        session.execute(text("SELECT FROM api_key"))
    engine.dispose()


def test_several_that_arrange_at_once_all_do(old_database: str, open_as: Callable[[str], Connection]) -> None:
    upgrade(old_database)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(arrange, [old_database] * 4)) == [None] * 4
    connection = open_as(as_owner(old_database))
    assert grants.granted(connection) == grants.wanted(connection)


@pytest.fixture
def administration(database_url: str) -> Iterator[psycopg.Connection]:
    """The superuser's connection; roles have no password afterwards, as they belong to the server."""
    with psycopg.connect(as_superuser(database_url), autocommit=True) as connection:
        yield connection
        for role in ROLES:
            connection.execute(f"ALTER ROLE {role} PASSWORD NULL")


def test_a_role_has_the_password_of_the_url_that_names_it(
    database_url: str, administration: psycopg.Connection
) -> None:
    logins = [
        f"postgresql://{SERVICE}:se%3Acret@db/tokenmill",
        f"postgresql://{PREPARE}@db/tokenmill",
        "postgresql://x:y@z",
    ]
    assert arrange(as_superuser(database_url), logins=logins) is None
    found: dict[str, Any] = dict(administration.execute("SELECT rolname, rolpassword FROM pg_authid").fetchall())
    assert opens(found[SERVICE], "se:cret")
    assert not opens(found[SERVICE], "se%3Acret")
    assert found[PREPARE] is None


def opens(verifier: str, password: str) -> bool:
    """Return whether a password matches a SCRAM verifier (RFC 5803)."""
    _, salted, keys = verifier.split("$")
    rounds, salt = salted.split(":")
    hashed = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(salt), int(rounds))
    client_key = hmac.digest(hashed, b"Client Key", "sha256")
    return hashlib.sha256(client_key).digest() == base64.b64decode(keys.split(":")[0])
