"""The embedded Postgres: a cluster in a folder, with a unix socket that only its owner can open."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg

from cli.embedded.binaries import PostgresBinaries, find_postgres
from cli.embedded.child import ChildSpec, SystemUser, launch_command
from cli.embedded.leftovers import wait_for_old_server
from cli.embedded.moved_cluster import put_in_place
from cli.embedded.sockets import socket_folder
from cli.embedded.system_user import can_run, user_for_postgres
from jobs.errors import InputError, ServiceError

SUPERUSER = "tokenmill"
DATABASE = "tokenmill"
_INITDB_SECONDS = 300.0

_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "logging_collector": "off",
}
THROWAWAY_SETTINGS: Mapping[str, str] = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    """A cluster that is started as `spec`. Create it with `prepare_postgres`."""

    spec: ChildSpec
    sockets: Path

    def url(self, database: str = DATABASE, *, user: str = SUPERUSER) -> str:
        """Return the URL for a user of the server. The socket trusts everyone who can open it: only its owner."""
        return f"postgresql://{user}@/{database}?host={quote(str(self.sockets))}"

    def create_database(self, name: str = DATABASE, *, template: str = "template1") -> str:
        """Create `name` unless it exists; return its URL."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
                connection.execute(
                    psycopg.sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                        psycopg.sql.Identifier(name), psycopg.sql.Identifier(template)
                    )
                )
        return self.url(name)


def prepare_postgres(
    folder: Path,
    *,
    log_path: Path,
    run_dir: Path,
    settings: Mapping[str, str] | None = None,
    binaries: PostgresBinaries | None = None,
) -> Postgres:
    """Return the server of the cluster in `folder`; its start creates the cluster if needed.

    The caller must hold the data directory's lock. `settings` override ours, and `binaries` those that are found.
    Raises InputError if the folder contains something else, and ServiceError.
    """
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    put_in_place(folder)  # before an empty cluster is created there
    _require_cluster_or_room(folder)
    binaries = binaries or find_postgres(major=major_of(folder))
    user = _user_with_reach(folder, binaries)
    sockets = socket_folder(run_dir, uid=None if user is None else user.uid)
    chosen = {**_SETTINGS, "unix_socket_directories": str(sockets), **(settings or {})}
    command = [str(binaries.postgres), "-D", str(folder), "-p", "5432"]
    for name, value in chosen.items():
        command += ["-c", f"{name}={value}"]
    return Postgres(
        sockets=sockets,
        spec=ChildSpec(
            name="postgres",
            command=command,
            log_path=log_path,
            is_ready=lambda: _answers(sockets),
            environment=_clean_environment(),
            user=user,
            before_start=lambda: _make_ready(folder, binaries=binaries, user=user),
            stop_signal=signal.SIGINT,  # fast shutdown: ends sessions and writes data
            death_signal=signal.SIGINT,
        ),
    )


def _make_ready(folder: Path, *, binaries: PostgresBinaries, user: SystemUser | None) -> None:
    if (folder / "PG_VERSION").exists():
        _clear_leftovers(folder)
    else:
        _initialise(folder, binaries=binaries, user=user)


def _answers(sockets: Path) -> bool:
    try:
        with psycopg.connect(host=str(sockets), user=SUPERUSER, dbname="postgres", connect_timeout=2):
            return True
    except psycopg.OperationalError:
        return False


def major_of(folder: Path) -> int | None:
    """Return the version of Postgres that created the cluster in a folder; None if there is none.

    Raises InputError if PG_VERSION cannot be parsed.
    """
    version = folder / "PG_VERSION"
    if not os.path.lexists(version):
        return None
    try:
        return int(version.read_text().split(".")[0])
    except (OSError, ValueError) as error:
        raise _no_cluster(folder, f"{version} contains no version of Postgres: {error}") from None


def _require_cluster_or_room(folder: Path) -> None:
    """Raise InputError unless the folder contains a cluster, or is empty or missing."""
    if major_of(folder) is not None or not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        raise _no_cluster(folder, "it is not a regular folder")
    if any(folder.iterdir()):
        raise _no_cluster(folder, "it is not empty, and has no PG_VERSION")


def _no_cluster(folder: Path, why: str) -> InputError:
    return InputError(
        f"{folder} contains no cluster of Postgres: {why}. Restore it, move it away to start with an empty database, "
        "or choose another --data-dir."
    )


def _user_with_reach(folder: Path, binaries: PostgresBinaries) -> SystemUser | None:
    owned = folder if folder.exists() else folder.parent
    user = user_for_postgres(owned)
    if user is None or can_run(user, binaries.postgres, folder=owned):
        return user
    user = replace(user, keeps_reach=True)
    if can_run(user, binaries.postgres, folder=owned):
        return user
    raise ServiceError(
        f"Postgres does not run as root, and its user (uid {user.uid}) may not enter {owned} or run "
        f"{binaries.postgres}. Choose folders that other users may enter, or start tokenmill as an ordinary user."
    )


def _initialise(folder: Path, *, binaries: PostgresBinaries, user: SystemUser | None) -> None:
    """Run initdb beside `folder` and rename, so that an interrupted start leaves no incomplete cluster."""
    unfinished = folder.with_name(folder.name + ".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    if user is not None:
        os.chown(unfinished, user.uid, user.gid)
    # fmt: off
    command = [
        str(binaries.initdb), "-D", str(unfinished), "--username", SUPERUSER, "--auth", "trust",
        "--encoding", "UTF8", "--locale", "C", "--no-instructions",
    ]
    # fmt: on
    answer = subprocess.run(
        launch_command(command, death_signal=signal.SIGKILL, user=user),
        capture_output=True,
        text=True,
        errors="replace",
        cwd="/",
        check=False,
        env=_clean_environment(),
        timeout=_INITDB_SECONDS,
    )  # fmt: skip
    if answer.returncode != 0:
        output = " ".join(answer.stderr.split()) or f"exit status {answer.returncode}"
        raise ServiceError(f"initdb could not create a Postgres cluster in {folder}: {output}")
    try:
        unfinished.rename(folder)
    except OSError as error:  # such as a mount point
        raise ServiceError(
            f"the new cluster cannot replace {folder}: {error.strerror}. Remove that folder, and mount its "
            "parent instead."
        ) from None


def _clean_environment() -> dict[str, str]:
    """Return our environment without variables that redirect Postgres (PGDATA, PGPORT …) or translate its log."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C"}


def _clear_leftovers(folder: Path) -> None:
    """Wait for a server that is shutting down, and remove a lock file whose pid belongs to another program now.

    Postgres handles a stale lock file if its pid is free, but not if the pid was reused, as happens in a restarted
    container.
    """
    wait_for_old_server(folder, program="postgres")
    lock = folder / "postmaster.pid"
    if lock.exists():
        pid = lock.read_text().split("\n", 1)[0].strip()
        if not pid.isdigit() or psutil.pid_exists(int(pid)):
            lock.unlink()
