from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text

from features import load_tables
from jobs import database
from jobs.database import MIGRATIONS, head_revision
from jobs.database.schema import alembic_config
from jobs.errors import ServiceError
from jobs.partitions import is_partition_name
from jobs.tables import Base

load_tables()

pytestmark = pytest.mark.changes_schema


def tables_only(name: str | None, kind: str, _parents: object) -> bool:
    return not (kind == "table" and is_partition_name(name or ""))


def test_the_migrations_make_the_schema_of_the_tables(engine: Engine) -> None:
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"include_name": tables_only, "compare_server_default": True}
        )
        assert compare_metadata(context, Base.metadata) == []


BY_MIGRATIONS_ALONE = re.compile(
    r"--\n-- Name: [^\n]*; Type: (FUNCTION|TRIGGER|SCHEMA);"
    r".*?(\$\w*\$;|ENABLE ALWAYS TRIGGER \w+;|EXECUTE FUNCTION public\.\w+\(\);|since initdb creates it)\n\n\n",
    re.DOTALL,
)
"""Functions, triggers and the schema's owner, which no table declares."""


TABLE = re.compile(r"(?<=^CREATE TABLE public\.)(\w+) \(\n(.*?)\n\)", re.DOTALL | re.MULTILINE)


def shared_columns() -> dict[str, set[str]]:
    """Return, by table, the columns that it declares together with other tables.

    Only their order is ignored: migrations created each table as a whole, with these columns in the middle, which
    shared declarations cannot express. No database is created from declarations, and no code depends on a column's
    position: see the test below. Everything else must be as declared, including the order of a table's own columns.
    """
    shared: dict[str, set[str]] = {}
    for mapper in Base.registry.mappers:
        inherited = {name for parent in mapper.class_.__mro__[1:] for name in vars(parent).get("__annotations__", ())}
        columns = {column.name for name, column in mapper.columns.items() if name in inherited}
        shared[mapper.class_.__tablename__] = columns
    return shared


def dump(pg_dump: Path, url: str) -> str:
    command = [str(pg_dump), "--schema-only", "--no-owner", "--no-privileges", "--restrict-key=x", url]
    exclude = ["--exclude-table=alembic_version", "--exclude-table=result_2*"]
    dumped = subprocess.run([*command, *exclude], capture_output=True, text=True, check=True).stdout
    shared = shared_columns()

    def shared_last(table: re.Match[str]) -> str:
        name, columns = table.groups()
        lines = [line.removesuffix(",") for line in columns.splitlines()]
        is_shared = {line: line.split()[0] in shared.get(name, ()) for line in lines}
        lines.sort(key=lambda line: (is_shared[line], line if is_shared[line] else ""))
        return "\n".join((f"{name} (", *lines, ")"))

    return TABLE.sub(shared_last, BY_MIGRATIONS_ALONE.sub("", dumped))


def test_the_migrations_and_the_tables_dump_alike(database_url: str, empty_database: str, pg_dump: Path) -> None:
    """Autogenerate ignores check constraints, storage parameters and identity options; a dump does not."""
    engine = database.connect(empty_database)
    Base.metadata.create_all(engine)
    engine.dispose()
    assert dump(pg_dump, database_url) == dump(pg_dump, empty_database)


GOES_BY_POSITION = re.compile(r"\b(?:INSERT INTO|COPY) +\w+(?: AS \w+)?\s+(?:SELECT|VALUES|FROM|TO|DEFAULT)\b")


def test_statements_that_write_rows_name_the_columns() -> None:
    sources = [path for folder in ("jobs", "features") for path in MIGRATIONS.with_name(folder).rglob("*.py")]
    found = [(path.name, match[0]) for path in sources for match in GOES_BY_POSITION.finditer(path.read_text())]
    assert found == []
    assert GOES_BY_POSITION.search("INSERT INTO run AS one\n    SELECT * FROM run")


def test_downgrading_leaves_an_empty_schema(database_url: str) -> None:
    from alembic import command

    engine = database.connect(database_url)
    with engine.connect() as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        names = connection.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).all()
    engine.dispose()
    assert names == ["alembic_version"]


def test_upgrading_from_two_processes_at_once_is_safe(empty_database: str) -> None:
    code = "import sys; from jobs.database import upgrade; upgrade(sys.argv[1])"
    processes = [
        subprocess.Popen([sys.executable, "-c", code, empty_database], stderr=subprocess.PIPE) for _ in range(2)
    ]
    problems = [process.communicate(timeout=120)[1].decode() for process in processes]
    assert problems == ["", ""]
    engine = database.connect(empty_database)
    assert database.is_ready(engine)
    engine.dispose()


def test_the_newest_revision_is_alembics_own_and_costs_no_alembic() -> None:
    scripts = ScriptDirectory(str(MIGRATIONS))
    assert head_revision() == scripts.get_current_head()
    code = "import sys; from jobs.database import head_revision; head_revision(); print('alembic' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=MIGRATIONS.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_a_database_without_the_schema_is_not_ready(empty_database: str) -> None:
    engine = database.connect(empty_database)
    assert not database.is_ready(engine)
    database.wait_until_ready(engine, 5)
    engine.dispose()


@pytest.mark.parametrize(
    ("revision", "floor", "is_ready"),
    [
        ("9998", "0001", True),
        ("9998", head_revision(), True),
        ("9998", "9997", False),
        ("0044", "0001", False),
    ],
)
def test_code_is_ready_on_a_newer_schema_until_that_has_lost_what_it_uses(
    engine: Engine, revision: str, floor: str, is_ready: bool
) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :new"), {"new": revision})
        connection.execute(text("UPDATE schema_floor SET revision = :floor"), {"floor": floor})
    assert database.is_ready(engine) == is_ready


def newer(engine: Engine, revision: str, *, floor: str) -> str:
    """Make the schema that of a later release, whose migrations are not here; return the database's URL."""
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :new"), {"new": revision})
        connection.execute(text("UPDATE schema_floor SET revision = :floor"), {"floor": floor})
    return engine.url.render_as_string(hide_password=False).replace("+psycopg", "")


def test_an_upgrade_leaves_a_newer_schema_that_this_code_runs_on(engine: Engine) -> None:
    url = newer(engine, "9998", floor=head_revision())
    assert database.upgrade(url) == "9998"
    assert database.is_ready(engine)


def test_an_upgrade_refuses_a_newer_schema_that_this_code_does_not_run_on(engine: Engine) -> None:
    with pytest.raises(ServiceError, match=r"9998.*9997"):
        database.upgrade(newer(engine, "9998", floor="9997"))


def test_an_upgrade_says_where_the_schema_is(database_url: str) -> None:
    assert database.upgrade(database_url) == head_revision()
