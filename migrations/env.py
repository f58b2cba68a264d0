"""Run by Alembic: `jobs.database.upgrade` hands a connection over; `alembic …` on the shell reads the settings."""

from __future__ import annotations

from typing import Any

from alembic import context
from sqlalchemy import Connection, text

from features import load_tables
from jobs.database import connect
from jobs.partitions import is_partition_name
from jobs.settings import load_settings
from jobs.tables import Base

# One migration at a time: others wait this long, then find nothing left to do.
_WAIT_FOR_OTHERS = "120s"
# DDL queues in front of every query of its table while it waits for its lock, so it must give up soon.
_LOCK_TIMEOUT = "5s"


load_tables()


def include_name(name: str | None, kind: str, _parents: Any) -> bool:
    """Leave the daily partitions of `result` out of comparisons; `jobs.partitions` makes and drops them."""
    return not (kind == "table" and name is not None and is_partition_name(name))


def run(connection: Connection) -> None:
    context.configure(
        connection=connection, target_metadata=Base.metadata, include_name=include_name, compare_server_default=True
    )
    with context.begin_transaction():
        connection.execute(text(f"SET LOCAL lock_timeout = '{_WAIT_FOR_OTHERS}'"))
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtextextended('migrations', 0))"))
        connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'"))
        context.run_migrations()


def run_online() -> None:
    given: Connection | None = context.config.attributes.get("connection")
    if given is not None:
        run(given)
        return
    engine = connect(load_settings().database_url)
    try:
        with engine.connect() as connection:
            run(connection)
    finally:
        engine.dispose()


def print_sql() -> None:
    context.configure(dialect_name="postgresql", target_metadata=Base.metadata, literal_binds=True)
    with context.begin_transaction():
        context.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
        context.run_migrations()


if context.is_offline_mode():
    print_sql()
else:
    run_online()
