"""The schema: whether this code runs on the present one, and the upgrade to this code's revision."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from jobs.database.connections import connect
from jobs.database.failures import reported_as_service_error, unreachable
from jobs.errors import ServiceError

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"
_SCHEMA = text("SELECT version_num, (SELECT revision FROM schema_floor) AS oldest_code FROM alembic_version")


def is_ready(engine: Engine) -> bool:
    """Return whether Postgres answers and this code runs on its schema."""
    try:
        with engine.connect() as connection:
            row = connection.execute(_SCHEMA).one_or_none()
    except (DBAPIError, PoolTimeoutError):
        return False
    return row is not None and runs_on(row.version_num, oldest_code=row.oldest_code)


def runs_on(revision: str, *, oldest_code: str) -> bool:
    """Return whether this code runs on a schema: its own, or a newer one that still has everything this code uses.

    So the processes of a release keep running during and after the upgrade to the next schema.
    """
    return oldest_code <= head_revision() <= revision


def wait_until_ready(engine: Engine, timeout: float, *, pause: float = 0.2) -> None:
    """Wait until Postgres answers. Raises ServiceError after `timeout` seconds, with the address and the cause."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            with engine.connect() as connection:
                connection.execute(text("SELECT 1"))
            return
        except DBAPIError as error:
            if time.monotonic() >= deadline:
                raise ServiceError(unreachable(engine.url, error)) from None
        time.sleep(pause)


def upgrade(database_url: str) -> str:
    """Upgrade the schema to this code's revision, and return the resulting one; safe to call concurrently.

    A newer one that this code runs on is left unchanged, so that a release can be rolled back. Raises ServiceError for
    a schema that this code does not run on and cannot upgrade.
    """
    from alembic import command  # noqa: PLC0415 - alembic is needed here only, and costs 0.1 s to import

    engine = connect(database_url)
    try:
        with reported_as_service_error(engine.url), engine.connect() as connection:
            newer = _newer_revision(connection)
            if newer is not None:
                return newer
            _take_over(connection)
            config = alembic_config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            return head_revision()
    finally:
        engine.dispose()


def _newer_revision(connection: Connection) -> str | None:
    """Return the revision of a schema newer than this code; None where it is not. Raises ServiceError."""
    revision = _revision(connection)
    if revision is None or revision <= head_revision():
        return None
    with connection.begin():
        row = connection.execute(_SCHEMA).one()
    if runs_on(revision, oldest_code=row.oldest_code):
        return str(revision)
    raise ServiceError(
        f"the schema is at revision {revision}, and releases that know less than {row.oldest_code} do not run on it; "
        f"this one knows {head_revision()}. Install the release that made it, or restore a backup from before."
    )


def _take_over(connection: Connection) -> None:
    """Upgrade a schema from before the baseline to the baseline. Raises ServiceError where there is no path."""
    from migrations import bridge  # noqa: PLC0415 - it is needed here only

    revision = _revision(connection)
    if revision is None or revision in _revisions():
        return
    if not bridge.begins_at(revision):
        raise ServiceError(
            f"the schema is at revision {revision}, and this release takes over {bridge.FIRST} to {bridge.LAST} alone: "
            f"run `tokenmill db upgrade` of the release that knows {bridge.LAST} first, then this one's."
        )
    bridge.cross(connection)


def _revision(connection: Connection) -> str | None:
    """Return the revision of the schema; None: there is none yet."""
    with connection.begin():
        if not inspect(connection).has_table("alembic_version"):
            return None
        revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


@cache
def head_revision() -> str:
    """Return the newest revision among the migration scripts.

    Every starting process needs it, and loading alembic and all scripts took 0.27 s of processor time.
    """
    return max(_revisions())


def _revisions() -> set[str]:
    """Return the revisions of the migration scripts, whose file names begin with their numbers."""
    return {path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*_*.py")}


def alembic_config() -> Any:
    """Return the alembic Config that finds the migration scripts."""
    from alembic.config import Config  # noqa: PLC0415 - see `upgrade`

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config
