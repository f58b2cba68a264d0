from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, make_url, text
from sqlalchemy.orm import Session, sessionmaker

from jobs import database
from jobs.database import MIGRATIONS, head_revision
from jobs.errors import InputError, ServiceError
from jobs.partitions import is_partition_name
from jobs.tables import Base


def tables_only(name: str | None, kind: str, _parents: object) -> bool:
    return not (kind == "table" and is_partition_name(name or ""))


def test_the_migrations_make_the_schema_of_the_tables(engine: Engine) -> None:
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"include_name": tables_only, "compare_server_default": True}
        )
        assert compare_metadata(context, Base.metadata) == []


BY_MIGRATIONS_ALONE = re.compile(
    r"--\n-- Name: [^\n]*; Type: (FUNCTION|TRIGGER);.*?(\$\$;|ENABLE ALWAYS TRIGGER \w+;)\n\n\n", re.DOTALL
)
"""Functions and triggers, which no table declares."""
TABLE = re.compile(r"(?<=^CREATE TABLE public\.)(\w+) \(\n(.*?)\n\)", re.DOTALL | re.MULTILINE)


def shared_columns() -> dict[str, set[str]]:
    """Return, by table, the columns that it declares together with others.

    Alone of these it is left open where among the table's own they stand: migrations made each table as a whole and
    have some of them in its middle, which no class that several tables are declared with can say. No database is made
    from declarations, and nothing goes by a column's position: see the test below. All else has to be as declared: of
    the own columns and of the shared ones the order, too.
    """
    shared: dict[str, set[str]] = {}
    for mapper in Base.registry.mappers:
        inherited = {name for parent in mapper.class_.__mro__[1:] for name in vars(parent).get("__annotations__", ())}
        columns = {column.name for name, column in mapper.columns.items() if name in inherited}
        shared[mapper.class_.__tablename__] = columns
    return shared


def dump(pg_dump: Path, url: str) -> str:
    command = [str(pg_dump), "--schema-only", "--no-owner", "--restrict-key=x", url]
    exclude = ["--exclude-table=alembic_version", "--exclude-table=result_2*"]
    dumped = subprocess.run([*command, *exclude], capture_output=True, text=True, check=True).stdout
    shared = shared_columns()

    def shared_last(table: re.Match[str]) -> str:
        name, columns = table.groups()
        lines = [line.removesuffix(",") for line in columns.splitlines()]
        lines.sort(key=lambda line: line.split()[0] in shared.get(name, ()))
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
    sources = Path(database.__file__).parent.rglob("*.py")
    found = [(path.name, match[0]) for path in sources for match in GOES_BY_POSITION.finditer(path.read_text())]
    assert found == []
    assert GOES_BY_POSITION.search("INSERT INTO run AS one\n    SELECT * FROM run")


def test_downgrading_leaves_an_empty_schema(database_url: str) -> None:
    from alembic import command

    engine = database.connect(database_url)
    with engine.connect() as connection:
        config = database._alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        names = connection.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).all()
    engine.dispose()
    assert names == ["alembic_version"]


def test_who_is_stopped_in_a_transaction_holds_its_locks_no_longer_than_it_may_be_idle(database_url: str) -> None:
    lock = text("SELECT pg_advisory_xact_lock(1)")
    stopped, other = (database.connect(database_url, idle_seconds=seconds) for seconds in (1, 300))

    def be_stopped_for_long() -> None:
        with database.transaction(database.sessions(stopped)) as session:
            session.execute(lock)
            with database.transaction(database.sessions(other)) as waiting:
                waiting.execute(lock)  # which fails after 5 s
            session.execute(text("SELECT 1"))

    with pytest.raises(ServiceError):  # as for any that breaks: it is tried again
        be_stopped_for_long()
    stopped.dispose()
    other.dispose()


def test_only_a_connection_that_has_rested_is_asked_whether_it_lives(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = database.connect(database_url, connections=1)
    pings = _pings(engine, monkeypatch)
    first = _backend(engine)
    assert (_backend(engine), pings) == (first, [])
    monkeypatch.setattr(database, "RESTED_SECONDS", 0.0)
    assert (_backend(engine), len(pings)) == (first, 1)
    engine.dispose()


def test_a_connection_that_the_server_has_closed_is_replaced_at_once(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = database.connect(database_url, connections=1)
    pings, first = _pings(engine, monkeypatch), _backend(engine)
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [first])  # and wait until it is gone
    assert _backend(engine) != first
    assert len(pings) == 1
    engine.dispose()


def _pings(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the connections that are asked whether they live, from now on."""
    pings, do_ping = list[object](), engine.dialect.do_ping

    def ask(connection: Any) -> bool:
        pings.append(connection)
        return do_ping(connection)

    monkeypatch.setattr(engine.dialect, "do_ping", ask)
    return pings


def _backend(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())


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


def test_an_unreachable_server_is_one_sentence_with_its_address() -> None:
    engine = database.connect("postgresql://user:secret@127.0.0.1:1/tokenmill")
    assert not database.is_ready(engine)
    calls: list[Callable[[], object]] = [lambda: database.wait_until_ready(engine, 0), lambda: use(engine)]
    for call in calls:
        with pytest.raises(ServiceError, match=r"cannot reach Postgres at 127\.0\.0\.1:1/tokenmill.*DATABASE_URL") as e:
            call()
        assert "secret" not in e.value.message


def use(engine: Engine) -> None:
    with database.transaction(database.sessions(engine)) as session:
        session.execute(text("SELECT 1"))


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://x/y", "sqlite:///x.db"])
def test_a_wrong_url_is_refused_with_the_right_form(url: str) -> None:
    with pytest.raises(InputError, match=r"TOKENMILL_DATABASE_URL is wrong.*postgresql://user"):
        database.connect(url)


def test_both_libpq_spellings_select_our_driver() -> None:
    for scheme in ("postgres", "postgresql", "postgresql+psycopg"):
        assert database.parse_url(f"{scheme}://u@h/d").drivername == "postgresql+psycopg"


def create_and_fail(maker: sessionmaker[Session]) -> None:
    with database.transaction(maker) as session:
        session.execute(text("CREATE TABLE dropped (i int)"))
        raise ZeroDivisionError


def lose_the_connection(maker: sessionmaker[Session]) -> None:
    with database.transaction(maker) as session:
        victim = session.scalar(text("SELECT pg_backend_pid()"))
        with maker.begin() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": victim})
        session.execute(text("SELECT 1"))


def test_a_transaction_commits_at_the_end_and_rolls_back_on_an_error(maker: sessionmaker[Session]) -> None:
    with database.transaction(maker) as session:
        session.execute(text("CREATE TABLE kept (i int)"))
    with pytest.raises(ZeroDivisionError):
        create_and_fail(maker)
    with maker() as session:
        assert session.scalar(text("SELECT to_regclass('kept') IS NOT NULL AND to_regclass('dropped') IS NULL"))


def test_a_killed_connection_is_a_service_error(maker: sessionmaker[Session]) -> None:
    with pytest.raises(ServiceError, match="cannot reach Postgres"):
        lose_the_connection(maker)


def test_a_database_without_the_schema_is_one_sentence_that_says_what_to_run(empty_database: str) -> None:
    engine = database.connect(empty_database)
    with (
        pytest.raises(ServiceError, match=r'"tenant" does not exist.*Run `tokenmill db upgrade`'),
        database.transaction(database.sessions(engine)) as session,
    ):
        session.execute(text("SELECT 1 FROM tenant"))
    engine.dispose()


def test_a_failing_statement_is_not_called_a_service_error(maker: sessionmaker[Session]) -> None:
    from sqlalchemy.exc import ProgrammingError

    with pytest.raises(ProgrammingError), database.transaction(maker) as session:
        session.execute(text("SELECT no_such_column FROM batch"))


def test_an_advisory_lock_is_held_until_the_transaction_ends(maker: sessionmaker[Session]) -> None:
    with maker() as one, maker() as two:
        assert database.try_advisory_lock(one, "batch x")
        assert not database.try_advisory_lock(two, "batch x")
        assert database.try_advisory_lock(two, "batch y")
        one.commit()
        assert database.try_advisory_lock(two, "batch x")


def test_no_statement_is_compiled(session: Session) -> None:
    assert session.scalar(text("SHOW jit")) == "off"


def test_time_is_read_as_utc(session: Session) -> None:
    assert session.scalar(text("SHOW timezone")) == "UTC"


WAITS = "SELECT current_setting('lock_timeout'), current_setting('statement_timeout'), current_setting('timezone')"


def with_options(url: str, options: str) -> str:
    return make_url(url).update_query_dict({"options": options}).render_as_string(hide_password=False)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("-c statement_timeout=7s", ("5s", "7s", "UTC")),
        ("-c lock_timeout=3s", ("3s", "0", "UTC")),
    ],
)
def test_options_in_the_url_add_to_our_timeouts_and_win_over_them(
    database_url: str, options: str, expected: tuple[str, str, str]
) -> None:
    engine = database.connect(with_options(database_url, options))
    with database.transaction(database.sessions(engine)) as session:
        assert tuple(session.execute(text(WAITS)).one()) == expected
    engine.dispose()


def test_our_timeouts_outlive_a_transaction_that_is_rolled_back(database_url: str) -> None:
    engine = database.connect(database_url, connections=1)
    for _ in range(2):
        with engine.connect() as connection:
            assert tuple(connection.execute(text(WAITS)).one()) == ("5s", "0", "UTC")
            connection.rollback()
    engine.dispose()


def test_a_process_opens_no_more_connections_than_it_may(database_url: str) -> None:
    maker = database.sessions(database.connect(database_url, connections=3))
    threads = [threading.Thread(target=use, args=(maker.kw["bind"],)) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with maker() as session:
        open_now = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        assert session.scalar(text(open_now)) == 3
    maker.kw["bind"].dispose()


def test_a_deadlock_or_lock_timeout_is_worth_another_try(maker: sessionmaker[Session]) -> None:
    with maker.begin() as setting_up:
        setting_up.execute(text("CREATE TABLE contended (i int)"))
    with maker.begin() as holder:
        holder.execute(text("LOCK TABLE contended"))
        with pytest.raises(ServiceError, match=r"gave up this transaction.*lock timeout.*retry"):
            wait_for_the_table(maker)


def wait_for_the_table(maker: sessionmaker[Session]) -> None:
    with database.transaction(maker) as session:
        session.execute(text("SET LOCAL lock_timeout = '10ms'"))
        session.execute(text("SELECT * FROM contended"))
