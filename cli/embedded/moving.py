"""Moves a cluster to another major version of Postgres: dumps each database into a new cluster, then renames.

The old cluster is only read. A killed move can be run again.
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

# Tables created in the same transaction then need no WAL: they are synced at commit.
_LOADING = {"wal_level": "minimal", "max_wal_senders": "0"}


def move_cluster(
    data_dir: DataDir, *, old: PostgresBinaries, new: PostgresBinaries, say: Callable[[str], None]
) -> Path:
    """Move a locked data directory to a cluster of the new Postgres; return where the old one is kept.

    Raises ConflictError if an old one is already kept there, and ServiceError if a server or a program fails: then
    nothing is changed.
    """
    folder = data_dir.postgres
    kept, unfinished, moved = kept_place(folder, old.major), unfinished_place(folder), moved_place(folder)
    if kept.exists():
        raise ConflictError(f"{kept} already exists; the old data would be kept there. Rename or delete it.")
    for leftover in (unfinished, moved):
        if leftover.exists():
            shutil.rmtree(leftover)
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
    """Run a server until the block ends. Raises ServiceError if it does not start."""
    child = Child(server.spec)
    child.start()
    try:
        child.wait_until_ready()
        yield
    finally:
        child.stop()


def _make_roles(server: Postgres) -> None:
    """Create the database roles: dumps do not contain them, but owners and grants name them."""
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
    """Pipe a dump into an empty database in one transaction; pg_dump reads older servers but not newer ones.

    Raises ServiceError with the last line of output of the program that failed.
    """
    dump = [str(programs / "pg_dump"), "--format=custom", "--compress=none", f"--dbname={source_url}"]
    restore = [str(programs / "pg_restore"), "--exit-on-error", "--single-transaction", f"--dbname={target_url}"]
    with tempfile.TemporaryFile() as dump_errors, tempfile.TemporaryFile() as restore_errors:
        with subprocess.Popen(_with_us(dump), stdout=subprocess.PIPE, stderr=dump_errors) as dumping:
            restoring = subprocess.run(_with_us(restore), stdin=dumping.stdout, stderr=restore_errors, check=False)
            assert dumping.stdout is not None
            dumping.stdout.close()  # so that pg_dump ends if pg_restore has
        for name, ended, errors in (("pg_restore", restoring, restore_errors), ("pg_dump", dumping, dump_errors)):
            if ended.returncode:
                raise ServiceError(f"{name} failed: {_last_line(errors)}. The data was not changed.")


def _with_us(command: Sequence[str]) -> list[str]:
    return launch_command(command, death_signal=signal.SIGKILL)


def _last_line(output: IO[bytes]) -> str:
    output.seek(0)
    lines = output.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"


def _analyse(url: str) -> None:
    """Collect statistics, which a dump lacks: without them the first claims of a long queue are slow."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ANALYZE")
