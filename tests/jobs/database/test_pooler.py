"""Tests behind PgBouncer in transaction mode: a server per transaction, no startup options, no prepared statements."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from sqlalchemy import Engine, make_url, text

from cli.embedded.sockets import free_port
from jobs import database, partitions
from jobs.errors import ServiceError

pytestmark = pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="needs pgbouncer on PATH")

CONFIGURATION = """
[databases]
* = host={sockets} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
auth_type = any
pool_mode = transaction
default_pool_size = 3
unix_socket_dir =
server_round_robin = 1
"""


@pytest.fixture
def pooled_url(database_url: str, tmp_path: Path) -> Iterator[str]:
    """The test's database through a PgBouncer."""
    url, port = make_url(database_url), free_port()
    configuration = tmp_path / "pgbouncer.ini"
    sockets = Path(str(url.query["host"]))
    values = {"sockets": sockets, "user": url.username, "port": port}
    configuration.write_text(CONFIGURATION.format(**values))
    owner = sockets.owner()  # the only user who may open them; as root, not this process's user
    user = ["--user", owner] if os.getuid() == 0 else []
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o755)
    process = subprocess.Popen(["pgbouncer", "--quiet", *user, str(configuration)])
    yield url.set(host="127.0.0.1", port=port, query={}).render_as_string(hide_password=False)
    process.terminate()
    process.wait(20)


@pytest.fixture
def engine(pooled_url: str) -> Iterator[Engine]:
    engine = database.connect(pooled_url)
    database.wait_until_ready(engine, 20)
    yield engine
    engine.dispose()


def test_every_transaction_has_our_timeouts_on_whichever_server_it_runs(engine: Engine) -> None:
    servers = set()
    with engine.connect() as one, engine.connect() as two, engine.connect() as three:
        for _ in range(2):
            for connection in (one, two, three):  # three transactions at once need three servers
                query = text("SELECT pg_backend_pid(), current_setting('lock_timeout')")
                server, lock_timeout = connection.execute(query).one()
                servers.add(server)
                assert lock_timeout == "5s"
            for connection in (three, one, two):
                connection.commit()
    assert len(servers) > 1, "or nothing was shown"


def test_what_is_asked_again_and_again_has_our_timeouts_too(engine: Engine) -> None:
    kept = database.KeptSession(database.sessions(engine))
    query = text("SELECT current_setting('lock_timeout')")
    for _ in range(3):
        assert kept.ask(lambda session: session.execute(query).scalar_one()) == "5s"


def test_statements_that_are_often_repeated_are_not_prepared(engine: Engine) -> None:
    with engine.connect() as one, engine.connect() as two:
        for _ in range(20):
            for connection in (one, two):
                assert connection.execute(text("SELECT CAST(:number AS int)"), {"number": 7}).scalar() == 7
                connection.commit()


def test_the_schema_can_be_upgraded_and_rows_streamed(pooled_url: str, engine: Engine) -> None:
    database.upgrade(pooled_url)
    assert database.is_ready(engine)
    with database.transaction(database.sessions(engine)) as session:
        query = text("SELECT generate_series(1, :last)")
        with database.stream(session, query, {"last": 1000}, num_rows=10) as rows:
            assert sum(number for (number,) in rows) == 500_500
        assert database.try_advisory_lock(session, "batch x")


def test_a_day_behind_a_reader_of_hours_is_given_up(engine: Engine) -> None:
    maker, day = database.sessions(engine), date(2024, 2, 28)
    with database.transaction(maker) as session:
        partitions.ensure_result_partition(session, day)
    with database.transaction(maker) as reader:
        reader.execute(text("SELECT count(*) FROM result"))
        with pytest.raises(ServiceError, match="gave up"), database.transaction(maker) as session:
            partitions.drop_partition(session, day)
