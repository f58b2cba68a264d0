"""Moves a cluster to another major version of Postgres: a dump of each database into a new cluster, then renames.

The old cluster is only read. Killed at any time, a move can be run again.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psycopg

from cli.data_dir import DataDir
from cli.embedded.binaries import PostgresBinaries
from cli.embedded.child import Child, launch_command
from cli.embedded.moved_cluster import kept_place, moved_place, put_in_place, rename, unfinished_place
from cli.embedded.postgres import Postgres, prepare_postgres
from jobs.access import make_roles
from jobs.database import connect
from jobs.errors import ConflictError, ServiceError

# Tables that a transaction has made itself need no WAL then: they are synced when it commits.
_LOADING = {"wal_level": "minimal", "max_wal_senders": "0"}


def move_cluster(
    data_dir: DataDir, *, old: PostgresBinaries, new: PostgresBinaries, say: Callable[[str], None]
) -> Path:
    """Let the data directory, whose lock is held, have a cluster of the new Postgres; return where the old one is kept.

    Raises ConflictError where one is kept there already, and ServiceError where a server or a program fails: then
    everything is as it was.
    """
    folder = data_dir.postgres
    kept, unfinished, moved = kept_place(folder, old.major), unfinished_place(folder), moved_place(folder)
    if kept.exists():
        raise ConflictError(f"{kept} exists already, where the old data would be kept. Rename or delete it.")
    for left in (unfinished, moved):
        if left.exists():
            shutil.rmtree(left)
    log = data_dir.logs / "postgres-move.log"
    source = prepare_postgres(folder, log_path=log, run_dir=data_dir.run / "postgres", binaries=old)
    target = prepare_postgres(
        unfinished, log_path=log, run_dir=data_dir.run / "postgres-new", binaries=new, settings=_LOADING
    )
    with running(source), running(target):
        _make_roles(target)
        for name in _databases(source):
            say(f"copying database {name}")
            _copy(source.url(name), target.create_database(name), programs=new.postgres.parent)
            _analyse(target.url(name))
    rename(unfinished, moved)
    rename(folder, kept)
    put_in_place(folder)
    return kept


@contextmanager
def running(server: Postgres) -> Iterator[None]:
    """Have a server until the block ends. Raises ServiceError where it does not start."""
    child = Child(server.spec)
    child.start()
    try:
        child.wait_until_ready()
        yield
    finally:
        child.stop()


def _make_roles(server: Postgres) -> None:
    """Make the database roles, which no dump of a database has, and which its owners and grants name."""
    engine = connect(server.url("postgres"))
    try:
        with engine.begin() as connection:
            make_roles(connection)
    finally:
        engine.dispose()


def _databases(server: Postgres) -> Sequence[str]:
    query = "SELECT datname FROM pg_database WHERE NOT datistemplate AND datname <> 'postgres' ORDER BY datname"
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        return [name for (name,) in connection.execute(query)]


def _copy(source_url: str, target_url: str, *, programs: Path) -> None:
    """Pipe a dump into an empty database, all or nothing; a new pg_dump reads older servers, not the other way round.

    Raises ServiceError with what the program that failed said last.
    """
    dump = [str(programs / "pg_dump"), "--format=custom", "--compress=none", f"--dbname={source_url}"]
    restore = [str(programs / "pg_restore"), "--exit-on-error", "--single-transaction", f"--dbname={target_url}"]
    with tempfile.TemporaryFile() as dump_said, tempfile.TemporaryFile() as restore_said:
        with subprocess.Popen(_with_us(dump), stdout=subprocess.PIPE, stderr=dump_said) as dumping:
            restoring = subprocess.run(_with_us(restore), stdin=dumping.stdout, stderr=restore_said, check=False)
            assert dumping.stdout is not None
            dumping.stdout.close()  # so that it ends where the other has
        for name, ended, said in (("pg_restore", restoring, restore_said), ("pg_dump", dumping, dump_said)):
            if ended.returncode:
                raise ServiceError(f"{name} failed: {_last_line(said)}. The data is where it was.")


def _with_us(command: Sequence[str]) -> list[str]:
    return launch_command(command, death_signal=signal.SIGKILL)


def _last_line(said: IO[bytes]) -> str:
    said.seek(0)
    lines = said.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _analyse(url: str) -> None:
    """Give the planner what a dump leaves out: without statistics the first claims of a long queue are slow."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ANALYZE")
