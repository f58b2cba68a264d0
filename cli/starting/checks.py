"""The settings of a starting role, and whether it can use its database and its object store."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cli.embedded.note import running_stack_of
from cli.starting.readiness import wait_for
from jobs.errors import InputError, ServiceError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, sessionmaker

    from jobs.settings import Settings

log = logging.getLogger(__name__)

DATABASE_SECONDS = 10.0  # how long a starting role waits for Postgres


def checked_settings(data_dir: Path | None, *, writes_objects: bool = False) -> Settings:
    """Return the settings once database and object store are usable. Raises TokenmillError."""
    settings = settings_of(data_dir)
    check(settings, writes_objects=writes_objects)
    return settings


def settings_of(data_dir: Path | None) -> Settings:
    """Return the settings, with the URLs of the `tokenmill up` that runs on a folder, if given."""
    from jobs.settings import load_settings

    if data_dir is not None:
        os.environ.pop("TOKENMILL_DATABASE_PREPARE_URL", None)  # would name another database
        os.environ.update(_urls_of_stack(data_dir))
    return load_settings()


def check(settings: Settings, *, writes_objects: bool = False, writes_below: str = "") -> None:
    """Raise TokenmillError unless database and object store can be used as the role will; wait for the former."""
    from jobs.database import connect, is_ready, sessions, wait_until_ready
    from jobs.storage import Storage, store_marker

    engine = connect(settings.database_url)
    try:
        with _naming_defaults("TOKENMILL_DATABASE_URL", settings.database_url):
            wait_until_ready(engine, DATABASE_SECONDS)
        if not is_ready(engine):
            raise ServiceError(
                "this version does not run on the database's schema. Run `tokenmill db upgrade`, or upgrade this "
                "installation if the schema is newer: `tokenmill doctor` shows both revisions."
            )
        _warn_of_login(sessions(engine))
        storage = Storage.of(settings)
        with _naming_defaults("TOKENMILL_STORAGE_URL", settings.storage_url):
            store_marker.bind(sessions(engine), storage)
            if writes_objects:
                storage.check(below=writes_below)
    finally:
        engine.dispose()


def check_once_there(start_file: Path, settings: Settings) -> None:
    """The same, once the start file exists."""
    wait_for(start_file)
    check(settings)


def _warn_of_login(maker: sessionmaker[Session]) -> None:
    """Log a warning if the database login has more rights than a service needs."""
    from jobs.access import standing_of
    from jobs.database import transaction

    with transaction(maker) as session:
        standing = standing_of(session)
    if standing.is_superuser or (standing.is_owner and standing.are_roles_there):
        log.warning(
            "the database's login may do more than a service needs login=%s: give services tokenmill_service and "
            "prepare workers tokenmill_prepare; docs/database_roles.md",
            standing.login,
        )


def _urls_of_stack(data_dir: Path) -> Mapping[str, str]:
    note = running_stack_of(data_dir)
    if note is None:
        raise InputError(
            f"no `tokenmill up` runs on {data_dir}. Start it, or name the folder of another with --data-dir."
        )
    return note.environment


@contextmanager
def _naming_defaults(variable: str, value: str) -> Iterator[None]:
    """Name the variable and its default in a ServiceError if the variable is not set."""
    try:
        yield
    except ServiceError as error:
        if os.environ.get(variable):
            raise
        raise ServiceError(
            f"{variable} is not set, and its default {value} does not work: {error.message}. Set it, or name the "
            "folder of a running `tokenmill up` with --data-dir."
        ) from None
