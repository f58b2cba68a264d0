"""A Postgres that counts its statements, and one API: nothing else runs, so all cost is the pages'."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from sqlalchemy import Engine

from jobs.database import connect, upgrade
from lab.chaos.stack import Launcher, Process, Server
from lab.own_stack import free_port

_CONNECTIONS = 2
"""Our own connections: for rows, and for reading Postgres' counters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardStack:
    """The running servers, and access to their rows."""

    postgres: Process
    api: Process
    url: str
    """Of the pages."""
    engine: Engine


@contextmanager
def running_stack(make_launcher: Callable[[Path], Launcher]) -> Iterator[DashboardStack]:
    """Start both in a temporary folder, on an empty database; stop them at the end."""
    folder = Path(tempfile.mkdtemp(prefix="tm-dashboard-"))
    folder.chmod(0o755)  # as root, Postgres runs as another user
    launcher = make_launcher(folder)
    server = launcher.postgres()
    try:
        start_counting(server)
        database_url = f"postgresql://tokenmill@/tokenmill?host={server.socket.parent}"
        upgrade(database_url)
        engine = connect(database_url, connections=_CONNECTIONS)
        api = launcher.role(
            "api", "--port", str(port := free_port()), log="api", environment=_environment(folder, database_url)
        )
        try:
            api.start()
            api.wait_until_ready()
            yield DashboardStack(postgres=server.process, api=api, url=f"http://127.0.0.1:{port}", engine=engine)
        finally:
            engine.dispose()
            api.stop()
    finally:
        server.process.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _environment(folder: Path, database_url: str) -> dict[str, str]:
    return {
        "TOKENMILL_DATABASE_URL": database_url,
        "TOKENMILL_STORAGE_URL": f"file://{folder}/objects",
        "TOKENMILL_REDIS_URL": f"unix://{folder}/no-valkey.sock",  # pages do not use it
    }


def start_counting(server: Server) -> None:
    """Start Postgres with a new database, and restart it with the extension that only loads at startup."""
    server.process.start()
    server.process.wait_until_ready()
    with psycopg.connect(
        f"postgresql://tokenmill@/postgres?host={server.socket.parent}", autocommit=True
    ) as connection:
        connection.execute("CREATE DATABASE tokenmill")
        connection.execute("ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'")
        connection.execute("ALTER SYSTEM SET pg_stat_statements.track_planning = 'on'")
    server.process.stop()
    server.process.start()
    server.process.wait_until_ready()
    with psycopg.connect(
        f"postgresql://tokenmill@/tokenmill?host={server.socket.parent}", autocommit=True
    ) as connection:
        connection.execute("CREATE EXTENSION pg_stat_statements")
