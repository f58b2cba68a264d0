"""`tokenmill db backup` and `db restore`: a dump of the database, then the objects that its rows name.

`jobs.retention.backups` holds the objects meanwhile.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.embedded.binaries import find_postgres
from cli.transactions import DataDirOption, given_logins, owner_database_url, storage_url
from jobs.counted import counted
from jobs.errors import InputError, ServiceError

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session, sessionmaker

    from jobs.storage import Storage

_DUMP = "database.dump"
_OBJECTS = "objects"
_WITHOUT_ROLES = ("--no-owner", "--no-privileges")
"""Roles belong to a server, and the target server may not have them yet."""

_NAME_OWNER = "Set TOKENMILL_DATABASE_OWNER_URL to its owner: docs/database_roles.md"

Folder = Annotated[Path, typer.Argument(help="Folder for the dump and the objects.")]


def register(app: typer.Typer) -> None:
    app.command("backup")(db_backup)
    app.command("restore")(db_restore)


def db_backup(
    folder: Folder,
    data_dir: DataDirOption = None,
    anew: Annotated[bool, typer.Option("--anew", help="Even if a backup that was killed still holds objects.")] = False,
) -> None:
    """Copy the database and its objects into a folder while the service runs; repeated, it copies only new objects.

    Meanwhile, for at most a day, no object is deleted. A backup that is killed leaves the previous one unchanged.
    """
    from jobs.retention import backups
    from jobs.storage import store_marker

    with _database(data_dir) as (url, maker), _written(folder / _DUMP) as dump:
        if anew:
            backups.release(maker)
        objects = _objects_in(folder)
        with backups.objects_held(maker):
            _run_program("pg_dump", url, maker, "--format=custom", *_WITHOUT_ROLES, f"--file={dump}")
            store = _store(data_dir, is_marked=True)
            store_marker.bind(maker, store)
            num_copied = backups.copy_objects(store, objects, is_copied=_is_copied)
            backups.copy_marker(store, objects)
            store.access.require_marker()  # otherwise the store went away, and nothing was copied
    print(f"{folder} has the database and its objects, {num_copied} of them new")


def db_restore(folder: Folder, data_dir: DataDirOption = None) -> None:
    """Restore a folder of `tokenmill db backup` into an empty database and an object store.

    Start the roles afterwards; first run `tokenmill db upgrade` if the backup is from an older version.
    """
    from jobs.access import arrange
    from jobs.retention import backups

    dump = folder / _DUMP
    with _usable(folder):
        is_there = dump.is_file()
    if not is_there:
        raise InputError(f"{dump} does not exist; name a folder of `tokenmill db backup`.")
    with _database(data_dir) as (url, maker):
        if backups.has_schema(maker):
            raise InputError("the database is not empty. Create a new one, and name it in TOKENMILL_DATABASE_URL.")
        # The objects first, so that no row names a missing one.
        objects, store = _objects_in(folder), _store(data_dir)
        num_copied = backups.copy_objects(objects, store, is_copied=_is_copied)
        backups.copy_marker(objects, store)
        _run_program("pg_restore", url, maker, *_WITHOUT_ROLES, "--exit-on-error", "--single-transaction", str(dump))
        backups.release(maker)  # the dump contains the hold
        refusal = arrange(url, logins=given_logins(data_dir))
    print(f"the database is restored, with {counted(num_copied, 'object')}; see `tokenmill audit`")
    if refusal is not None:
        print(refusal)
    print("if it replaces another database for good: `tokenmill db adopt-storage`")


def _is_copied(name: str) -> bool:
    """Return whether an object belongs to a file or an index.

    Parsed documents and tokenizers are left out: they are made again when needed.
    """
    from features.retrieval.objects import is_whole
    from jobs.files import is_object_key

    return is_object_key(name) or is_whole(name)


@contextmanager
def _database(data_dir: Path | None) -> Iterator[tuple[str, sessionmaker[Session]]]:
    from jobs.database import connect, sessions

    url = owner_database_url(data_dir)
    engine: Engine = connect(url)
    try:
        yield url, sessions(engine)
    finally:
        engine.dispose()


@contextmanager
def _written(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block succeeds."""
    unfinished = path.with_name(f"{path.name}.part")
    with _usable(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        unfinished.open("ab").close()
    yield unfinished
    unfinished.replace(path)


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """Turn OSErrors about the folder of a backup into InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{folder} cannot hold a backup: {error.strerror}: {error.filename}. Choose another folder."
        ) from None


def _store(data_dir: Path | None, *, is_marked: bool = False) -> Storage:
    from jobs.storage import Storage

    url = storage_url(data_dir)
    if url is None:
        raise InputError("the object store is not known; set TOKENMILL_STORAGE_URL as the service does, or --data-dir")
    return Storage(url, is_marked=is_marked)


def _objects_in(folder: Path) -> Storage:
    from jobs.storage import Storage

    objects = (folder / _OBJECTS).absolute()
    with _usable(folder):
        objects.mkdir(parents=True, exist_ok=True)
    return Storage(objects.as_uri())


def _run_program(name: str, url: str, maker: sessionmaker[Session], *arguments: str) -> None:
    """Run a program of Postgres on the database. Raises ServiceError with its last line of output."""
    from sqlalchemy import URL, make_url

    from jobs.retention import backups

    parsed = make_url(url)
    # Not in the arguments, which every user of the machine can read; a URL may have it in its query too.
    secret = parsed.password or parsed.query.get("password")
    environment = os.environ | ({"PGPASSWORD": str(secret)} if secret else {})
    open_url = URL.create(
        "postgresql",
        username=parsed.username,
        host=parsed.host,
        port=parsed.port,
        database=parsed.database,
        query={name: value for name, value in parsed.query.items() if name != "password"},
    ).render_as_string()
    program = _program(name, backups.server_major(maker))
    done = subprocess.run(
        [program, f"--dbname={open_url}", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode and any(text in done.stderr for text in ("permission denied", "lack SELECT privilege")):
        raise ServiceError(f"{name} failed: {parsed.username} does not own the database. {_NAME_OWNER}")
    if done.returncode:
        raise ServiceError(f"{name} failed: {(done.stderr.strip() or 'no output').splitlines()[-1]}")


def _program(name: str, major: int) -> Path:
    """Return a program of at least the server's version. Raises ServiceError saying what to install."""
    versions = {path: _major_of(path) for path in _candidates(name)}
    usable = [path for path, version in versions.items() if version >= major]
    if not usable:
        found = ", ".join(f"{version} at {path}" for path, version in versions.items()) or "none"
        raise ServiceError(f"{name} of PostgreSQL {major} or later was not found (found: {found}). Install its client.")
    return min(usable, key=lambda path: versions[path])


def _candidates(name: str) -> Iterator[Path]:

    if on_path := shutil.which(name):
        yield Path(on_path)
    try:
        embedded = find_postgres().postgres.with_name(name)
    except ServiceError:
        return
    if embedded.is_file():
        yield embedded


def _major_of(path: Path) -> int:
    output = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"(\d+)", output)
    return 0 if version is None else int(version[1])
