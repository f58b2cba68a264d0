"""Real servers for tests: one temporary Postgres, Valkey and API per session, and one database per test.

Imports none of our packages at the top: the tests of `engine` and `kernels` also run where only torch and pytest are
installed.
"""

from __future__ import annotations

import gc
import importlib.util
import itertools
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.keeping.results import add_option, kept_results

if TYPE_CHECKING:
    import psycopg

    from cli.embedded.postgres import Postgres
    from lab.s3_server import S3Server
    from tests.api.deployment import Deployment

NEEDS_THE_SERVICE = ["api", "cli", "e2e", "examples", "features", "flows", "jobs", "workers"]
collect_ignore = NEEDS_THE_SERVICE if importlib.util.find_spec("sqlalchemy") is None else []

if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import HealthCheck, settings

    # The time to generate or run an example depends on the machine's load, and is never under test.
    settings.register_profile("tokenmill", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("tokenmill")


def pytest_addoption(parser: pytest.Parser) -> None:
    add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Prepare this process and those that it starts.

    A shell lets processes that it starts with `&` ignore interrupts, and their children would, too. Each HTTP client
    loads the trusted certificates, 23 ms of CPU for the 117 of certifi: tests trust a single one, whose key is gone.
    """
    os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("certificate.pem"))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(kept_results(config))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collections, each of which would walk all the modules and tests that are there so far."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long modules first, so that at the end the processes share short ones."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    """Exclude loaded modules from garbage collection: with torch and SQLAlchemy it took an eighth of the time.

    A collection before it would walk them once, which takes 1.4 s, and free little: importing makes hardly any garbage.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@contextmanager
def _folder() -> Iterator[Path]:
    """Make a folder in memory if it has a free GiB: a database is copied in 0.04 s there, in 0.2 s on a busy disk.

    Its path is short: a socket's path has at most 107 bytes.
    """
    memory = Path("/dev/shm")
    is_roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**30
    folder = Path(tempfile.mkdtemp(prefix="tokenmill-", dir=memory if is_roomy else "/tmp"))
    folder.chmod(0o755)  # as root, Postgres runs as another user
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def memory_folder() -> Iterator[Path]:
    """An empty folder for a stack's data, whose many small syncs would take seconds on a busy disk."""
    with _folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def session_folder() -> Iterator[Path]:
    """The same for data that lasts as long as all tests."""
    with _folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def _postgres() -> Iterator[Postgres]:
    from cli.embedded.child import Child
    from cli.embedded.postgres import THROWAWAY_SETTINGS, prepare_postgres

    with _folder() as folder:
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
def _administration(postgres_url: str) -> Iterator[psycopg.Connection]:
    """The connection that creates and drops databases: opening one for each would take 6 ms more, twice per test."""
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="session")
def new_database(_postgres: Postgres, _administration: psycopg.Connection) -> Callable[[], str]:
    """Return a function that makes a migrated database and returns its URL, for module-scoped fixtures.

    The URL is that of services, which own nothing; `tests.database_roles` has the others.
    """
    from jobs import partitions
    from jobs.access import SERVICE, arrange
    from jobs.database import connect, sessions, upgrade
    from tests import compiled_statements

    compiled_statements.share()
    url = _postgres.create_database("migrated")
    upgrade(url)
    assert arrange(url) is None
    engine = connect(url)
    with sessions(engine).begin() as session:
        for days in (-1, 0, 1):
            partitions.ensure_result_partition(session, datetime.now(UTC).date() + timedelta(days=days))
    engine.dispose()
    numbers = itertools.count()

    def make() -> str:
        name = f"test_{next(numbers)}"
        _copy(_administration, "migrated", name)
        return _postgres.url(name, user=SERVICE)

    return make


def _copy(administration: psycopg.Connection, template: str, name: str) -> None:
    """Copy a database by its files: copying block by block through the log, the default, takes three times as long."""
    from psycopg import sql

    copied = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
    administration.execute(copied.format(sql.Identifier(name), sql.Identifier(template)))


def _drop(administration: psycopg.Connection, url: str) -> None:
    from psycopg import conninfo, sql

    name = str(conninfo.conninfo_to_dict(url)["dbname"])
    administration.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def database_url(
    new_database: Callable[[], str], _administration: psycopg.Connection, request: pytest.FixtureRequest
) -> Iterator[str]:
    """The URL of this test's own, migrated, empty database, with the login of services.

    A test marked `changes_schema` does what services may not, and gets its superuser's URL.
    """
    url = new_database()
    is_marked = request.node.get_closest_marker("changes_schema") is not None
    yield _as_superuser(url) if is_marked else url
    _drop(_administration, url)


def _as_superuser(url: str) -> str:
    from tests.database_roles import as_superuser

    return as_superuser(url)


@pytest.fixture
def empty_database(_postgres: Postgres, _administration: psycopg.Connection) -> Iterator[str]:
    """The URL of a database without our schema."""
    url = _postgres.create_database("empty")
    yield url
    _drop(_administration, url)


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """The `redis://` URL of a Valkey on a local port."""
    from cli.embedded.child import Child
    from cli.embedded.sockets import free_port
    from cli.embedded.valkey import prepare_valkey

    with _folder() as folder:
        server = prepare_valkey(
            folder / "data", log_path=folder / "valkey.log", run_dir=folder / "run", port=free_port()
        )
        child = Child(server.spec)
        child.start()
        try:
            child.wait_until_ready()
            yield server.url
        finally:
            child.stop()


@pytest.fixture(scope="session")
def quick_commands() -> Iterator[Path]:
    """A folder for the PATH with a quick `tokenmill` and `python`, for tests that are not about their processes."""
    from tests.forked.commands import forked_commands

    with _folder() as folder, forked_commands(folder) as commands:
        yield commands


@pytest.fixture
def quick_processes(quick_commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process start commands, roles and engines as forks, as they do themselves then."""
    monkeypatch.setattr(sys, "executable", str(quick_commands / "python"))


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """An S3 that can answer, refuse or hang; this process finds it under `s3.url`."""
    from lab.s3_server import s3_server

    with s3_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture(scope="module")
def deploy(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Deployment]]:
    """Return a function that starts an API with the given settings and one model; it ends with the module.

    An idle API polls its database, and takes 0.3 % of a core.
    """
    from tests.api.deployment import deploying

    with deploying(new_database, tmp_path_factory.mktemp) as start:
        yield start


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Return a function that starts an API with the given settings, even without a database, and returns its URL.

    The API ends with the module.
    """
    from tests.api.deployment import serving_any

    with serving_any(tmp_path_factory.mktemp) as start:
        yield start


@pytest.fixture(scope="session")
def _lasting(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Deployment]]:
    from tests.api.deployment import deploying

    with deploying(new_database, tmp_path_factory.mktemp) as start:
        yield start


@pytest.fixture(scope="session")
def deployment(_lasting: Callable[..., Deployment]) -> Deployment:
    """The API with default settings that most tests share."""
    return _lasting()


@pytest.fixture(scope="session")
def pages_deployment(_lasting: Callable[..., Deployment]) -> Deployment:
    """The API that tests of pages share: they change rows directly."""
    return _lasting()
