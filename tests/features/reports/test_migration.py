"""Tests of the migration of reports: the order of its locks, and its way back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, event, text

from jobs import database
from jobs.database.schema import alembic_config

pytestmark = pytest.mark.changes_schema

Migrate = Callable[[Config, str], None]


@pytest.fixture
def connection(empty_database: str) -> Iterator[Connection]:
    engine = database.connect(empty_database)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def migrate(connection: Connection, to: Migrate, revision: str) -> list[str]:
    """Migrate, and return the statements that change the schema, in order."""
    made: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.lstrip().startswith(("ALTER TABLE", "CREATE")):
            made.append(statement)

    config = alembic_config()
    config.attributes["connection"] = connection
    event.listen(connection.engine, "before_cursor_execute", note)
    try:
        to(config, revision)
    finally:
        event.remove(connection.engine, "before_cursor_execute", note)
    return made


def test_the_index_is_made_before_other_locks_and_files_are_locked_last(connection: Connection) -> None:
    migrate(connection, command.upgrade, "1001")
    changes = migrate(connection, command.upgrade, "1002")
    assert "run_pipeline_id_scheduled_for_idx" in changes[0]
    assert "run_step_failed_rows_file_id_fkey" in changes[-1]


def test_the_way_back_leaves_no_event_that_earlier_code_cannot_name(connection: Connection) -> None:
    migrate(connection, command.upgrade, "1002")
    connection.execute(text("INSERT INTO tenant (id, name) VALUES ('t', 't')"))
    connection.execute(
        text(
            "INSERT INTO webhook_endpoint (id, tenant_id, name, url, event_types, secret)"
            " VALUES ('w', 't', 'w', 'https://example.com', ARRAY['run.failed', 'report.ready'], 's')"
        )
    )
    connection.execute(
        text(
            "INSERT INTO webhook_delivery (id, endpoint_id, tenant_id, event_id, event_type, event_data)"
            " VALUES ('d', 'w', 't', 'e', 'report.ready', '{}')"
        )
    )
    migrate(connection, command.downgrade, "1001")
    assert connection.scalar(text("SELECT event_types FROM webhook_endpoint")) == ["run.failed"]
    assert connection.scalar(text("SELECT count(*) FROM webhook_delivery")) == 0
