"""Run by Alembic: `jobs.database.upgrade` passes a connection; `alembic …` in a shell reads the settings."""

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
# A waiting DDL statement blocks every other query of its table, so it must give up soon.
_LOCK_TIMEOUT = "5s"


load_tables()


def include_name(name: str | None, kind: str, _parents: Any) -> bool:
    """Exclude the daily partitions of `result` from comparisons; `jobs.partitions` creates and drops them."""
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
    existing: Connection | None = context.config.attributes.get("connection")
    if existing is not None:
        run(existing)
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
