"""The transactions of commands that talk to Postgres directly, and where that and the object store are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.data_dir import DataDir, default_data_dir
from jobs.errors import InputError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker

    from jobs.admin_log import Admin

DataDirOption = Annotated[
    Path | None, typer.Option(help="Use the running `tokenmill up` of this folder, not TOKENMILL_DATABASE_URL.")
]


@contextmanager
def database_sessions(data_dir: Path | None) -> Iterator[sessionmaker[Session]]:
    """Give the sessions of the database of the environment, or of a running `tokenmill up`."""
    from jobs.database import connect, sessions

    engine = connect(running_database_url(data_dir))
    try:
        yield sessions(engine)
    finally:
        engine.dispose()


@contextmanager
def admin_transaction(data_dir: Path | None) -> Iterator[Session]:
    """Run one transaction on that database."""
    from jobs.database import transaction

    with database_sessions(data_dir) as maker, transaction(maker) as session:
        yield session


@contextmanager
def administration(data_dir: Path | None) -> Iterator[Admin]:
    """Run one transaction that changes something: the admin log names the user of this process."""
    from jobs.admin_log import Actor, Admin

    with admin_transaction(data_dir) as session:
        yield Admin(session=session, actor=Actor.of_process())


def storage_url(data_dir: Path | None) -> str | None:
    """Return where the object store is, None where nobody has said."""
    given = os.environ.get("TOKENMILL_STORAGE_URL")
    if data_dir is None and (given or given_database_url()):
        return given
    return DataDir(root=(data_dir or default_data_dir()).absolute()).objects.as_uri()


def owner_database_url(data_dir: Path | None) -> str:
    """Return where a database is changed as a whole: as its owner where that is known, else as everything else."""
    given = os.environ.get("TOKENMILL_DATABASE_OWNER_URL") or given_database_url()
    if given and data_dir is None:
        return given
    noted = DataDir(root=data_dir or default_data_dir()).owner_url
    return noted.read_text().strip() if noted.exists() else running_database_url(data_dir)


def given_database_url() -> str | None:
    """Return the database that the environment names: for services, or else for its owner, who may do their work."""
    return os.environ.get("TOKENMILL_DATABASE_URL") or os.environ.get("TOKENMILL_DATABASE_OWNER_URL")


def given_logins(data_dir: Path | None) -> list[str]:
    """Return the URLs of the environment, whose roles of the database are to have their passwords."""
    names = [f"TOKENMILL_DATABASE_{whose}URL" for whose in ("", "PREPARE_", "OWNER_")]
    return [url for name in names if (url := os.environ.get(name))] if data_dir is None else []


def running_database_url(data_dir: Path | None) -> str:
    """Return TOKENMILL_DATABASE_URL, or the database of the stack that runs on `data_dir`. Raises InputError."""
    given = given_database_url()
    if given and data_dir is None:
        return given
    folder = data_dir or default_data_dir()
    noted = DataDir(root=folder).database_url
    if not noted.exists():
        raise InputError(
            f"no database is known: TOKENMILL_DATABASE_URL is not set, and no `tokenmill up` runs on {folder}. "
            "Set the one, or name the other with --data-dir."
        )
    return noted.read_text().strip()
