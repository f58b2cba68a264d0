"""The transactions of commands that talk to Postgres directly, and where that and the object store are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker

    from jobs.admin_log import Admin

DataDirOption = Annotated[
    Path | None, typer.Option(help="Use the running `tokenmill up` of this folder, not TOKENMILL_DATABASE_URL.")
]


@contextmanager
def database_sessions(data_dir: Path | None) -> Iterator[sessionmaker[Session]]:
    """Give the sessions of the database of the environment, or of a running `tokenmill up`."""
    from cli.up_command import running_database_url
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
    from cli.data_dir import DataDir
    from cli.up_command import default_data_dir, given_database_url

    given = os.environ.get("TOKENMILL_STORAGE_URL")
    if data_dir is None and (given or given_database_url()):
        return given
    return DataDir(root=(data_dir or default_data_dir()).absolute()).objects.as_uri()
