"""Real servers for the tests that need them: one throwaway Postgres and one Valkey a session, a database a test."""

import itertools
from collections.abc import Callable, Iterator

import psycopg
import pytest

from cli.embedded.child import Child
from cli.embedded.postgres import THROWAWAY_SETTINGS, Postgres, prepare_postgres
from cli.embedded.sockets import free_port
from cli.embedded.valkey import prepare_valkey


@pytest.fixture(scope="session")
def _postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    folder = tmp_path_factory.mktemp("postgres")
    server = prepare_postgres(
        folder / "cluster", log_path=folder / "postgres.log", run_dir=folder / "run", settings=THROWAWAY_SETTINGS
    )
    child = Child(server.spec)
    child.start()
    try:
        child.wait_until_ready()
        yield server
    finally:
        child.stop()


@pytest.fixture(scope="session")
def postgres_url(_postgres: Postgres) -> str:
    """The URL of an empty maintenance database; its user may create others."""
    return _postgres.url("postgres")


@pytest.fixture(scope="session")
def new_database(_postgres: Postgres) -> Callable[[], str]:
    """Return a function that makes a migrated database and returns its URL: what module-scoped fixtures use."""
    from jobs.database import upgrade

    upgrade(_postgres.create_database("migrated"))
    numbers = itertools.count()
    return lambda: _postgres.create_database(f"test_{next(numbers)}", template="migrated")


@pytest.fixture
def database_url(new_database: Callable[[], str], postgres_url: str) -> Iterator[str]:
    """The URL of this test's own migrated database."""
    url = new_database()
    yield url
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            psycopg.sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(psycopg.sql.Identifier(str(name)))
        )


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The `redis://` URL of a Valkey on a local port."""
    folder = tmp_path_factory.mktemp("valkey")
    server = prepare_valkey(folder / "data", log_path=folder / "valkey.log", run_dir=folder / "run", port=free_port())
    child = Child(server.spec)
    child.start()
    try:
        child.wait_until_ready()
        yield server.url
    finally:
        child.stop()
