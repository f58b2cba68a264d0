"""Transactions of commands that connect to Postgres, and the URLs of the database and the object store."""

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
    """Open sessions of the database of the environment or of a running `tokenmill up`."""
    from jobs.database import connect, sessions

    engine = connect(running_database_url(data_dir))
    try:
        yield sessions(engine)
    finally:
        engine.dispose()


@contextmanager
def admin_transaction(data_dir: Path | None) -> Iterator[Session]:
    """Run one transaction in that database."""
    from jobs.database import transaction

    with database_sessions(data_dir) as maker, transaction(maker) as session:
        yield session


@contextmanager
def administration(data_dir: Path | None) -> Iterator[Admin]:
    """Run one transaction of an operator: the admin log names the user of this process."""
    from jobs.admin_log import Actor, Admin

    with admin_transaction(data_dir) as session:
        yield Admin(session=session, actor=Actor.of_process())


def storage_url(data_dir: Path | None) -> str | None:
    """Return the URL of the object store; None if it is not known."""
    url = os.environ.get("TOKENMILL_STORAGE_URL")
    if data_dir is None and (url or given_database_url()):
        return url
    return DataDir(root=(data_dir or default_data_dir()).absolute()).objects.as_uri()


def owner_database_url(data_dir: Path | None) -> str:
    """Return the URL of the database's owner if it is known, otherwise that of services. Raises InputError."""
    url = os.environ.get("TOKENMILL_DATABASE_OWNER_URL") or given_database_url()
    if url and data_dir is None:
        return url
    file = DataDir(root=data_dir or default_data_dir()).owner_url
    return file.read_text().strip() if file.exists() else running_database_url(data_dir)


def given_database_url() -> str | None:
    """Return the URL of the environment: that of services, or else the owner's, who may do their work."""
    return os.environ.get("TOKENMILL_DATABASE_URL") or os.environ.get("TOKENMILL_DATABASE_OWNER_URL")


def given_logins(data_dir: Path | None) -> list[str]:
    """Return the database URLs of the environment; their roles get the passwords in them."""
    names = [f"TOKENMILL_DATABASE_{whose}URL" for whose in ("", "PREPARE_", "OWNER_", "SCALER_")]
    return [url for name in names if (url := os.environ.get(name))] if data_dir is None else []


def running_database_url(data_dir: Path | None) -> str:
    """Return TOKENMILL_DATABASE_URL, or the database of the stack that runs on `data_dir`. Raises InputError."""
    url = given_database_url()
    if url and data_dir is None:
        return url
    folder = data_dir or default_data_dir()
    file = DataDir(root=folder).database_url
    if not file.exists():
        raise InputError(
            f"no database is known: TOKENMILL_DATABASE_URL is not set, and no `tokenmill up` runs on {folder}. "
            "Set the variable, or name another folder with --data-dir."
        )
    return file.read_text().strip()
