"""Tests that migrations expand: what the previous release uses stays, unless one names the code that it removes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from jobs import database
from jobs.database.schema import alembic_config

COLUMNS = text("""
    SELECT table_name || '.' || column_name AS name, data_type,
        is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO' AND is_generated = 'NEVER' AS is_demanded
    FROM information_schema.columns WHERE table_schema = 'public'
""")
FLOOR = text("SELECT revision FROM schema_floor")
Columns = dict[str, tuple[str, bool]]

pytestmark = pytest.mark.changes_schema


@pytest.fixture
def connection(empty_database: str) -> Iterator[Connection]:
    engine = database.connect(empty_database)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def columns(connection: Connection) -> Columns:
    return {row.name: (row.data_type, row.is_demanded) for row in connection.execute(COLUMNS)}


def upgrade(connection: Connection, revision: str) -> None:
    config = alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def losses(before: Columns, after: Columns) -> Iterator[str]:
    """Yield what code for the schema `before` misses in `after`."""
    tables = {name.partition(".")[0] for name in before}
    for name, (kind, _) in before.items():
        if name not in after:
            yield f"{name} is gone"
        elif after[name][0] != kind:
            yield f"{name} was {kind} and is {after[name][0]}"
    for name, (_, is_demanded) in after.items():
        was_demanded = name in before and before[name][1]
        if is_demanded and not was_demanded and name.partition(".")[0] in tables:
            yield f"{name} is demanded of code that does not know it"


def test_every_migration_leaves_the_release_before_running_or_says_that_it_does_not(connection: Connection) -> None:
    scripts = ScriptDirectory(str(database.MIGRATIONS)).walk_revisions()
    before: Columns = {}
    found: dict[str, list[str]] = {}
    for revision in sorted(script.revision for script in scripts):
        upgrade(connection, revision)
        after = columns(connection)
        says_so = connection.execute(FLOOR).scalar_one() == revision
        if (lost := sorted(losses(before, after))) and not says_so:
            found[revision] = lost
        before = after
    assert found == {}, "give a server default; to take away, call `migrations.contracts.require_code`"


@pytest.mark.parametrize(
    "as_before",
    [
        "DROP TABLE spill_lack; ALTER TABLE spill_day ADD COLUMN needed_picos numeric DEFAULT '0' NOT NULL;"
        "ALTER TABLE worker DROP COLUMN may_serve, DROP COLUMN left_out; ALTER TABLE due_work DROP COLUMN class_dues",
        "DROP TABLE spill_lack, spill_day, due_work, scaling; DROP FUNCTION tokenmill_wanted_workers(text);"
        "ALTER TABLE model DROP COLUMN base, DROP COLUMN adapter; ALTER TABLE tenant DROP COLUMN may_leave_house",
    ],
    ids=["with a part of it", "without it"],
)
def test_a_database_whose_baseline_was_changed_in_place_gets_what_it_lacks(
    connection: Connection, as_before: str
) -> None:
    upgrade(connection, "1001")
    expected = columns(connection)
    connection.execute(text(f"{as_before}; UPDATE alembic_version SET version_num = '1000'"))
    assert columns(connection) != expected
    upgrade(connection, "1001")
    assert columns(connection) == expected
    assert connection.scalar(text("SELECT count(*) FROM pg_proc WHERE proname = 'tokenmill_wanted_workers'")) == 1


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ("ALTER TABLE tenant DROP COLUMN weight", "tenant.weight is gone"),
        ("ALTER TABLE tenant RENAME COLUMN weight TO share", "tenant.weight is gone"),
        ("DROP TABLE deletion", "deletion.id is gone"),
        ("ALTER TABLE tenant ALTER COLUMN name TYPE varchar(9)", "tenant.name was text and is character varying"),
        ("ALTER TABLE tenant ADD COLUMN new text NOT NULL", "tenant.new is demanded of code that does not know it"),
        (
            "ALTER TABLE tenant ALTER COLUMN deleted_at SET NOT NULL",
            "tenant.deleted_at is demanded of code that does not know it",
        ),
        ("ALTER TABLE tenant ADD COLUMN new text NOT NULL DEFAULT ''", None),
        ("CREATE TABLE other (id text NOT NULL)", None),
    ],
)
def test_what_a_migration_takes_away_is_seen(engine: Any, change: str, lost: str | None) -> None:
    with engine.connect() as connection:
        before = columns(connection)
        connection.execute(text(change))
        assert next(losses(before, columns(connection)), None) == lost


def test_a_contract_lets_only_newer_code_be_ready(engine: Any) -> None:
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    from migrations.contracts import require_code

    assert database.is_ready(engine)
    for revision, is_ready in (("0001", True), (database.head_revision(), True), ("9999", False)):
        with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
            require_code(revision)
        assert database.is_ready(engine) == is_ready
