"""Tests of `tokenmill db move`: the data of an embedded Postgres continues on another major version."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from cli.data_dir import DataDir, locked
from cli.embedded import moved_cluster, moving
from cli.embedded.binaries import OLDEST_POSTGRES, PostgresBinaries, find_postgres, find_programs
from cli.embedded.moved_cluster import kept_place, moved_place, unfinished_place
from cli.embedded.postgres import major_of, prepare_postgres
from jobs.access import OWNER, ROLES, SERVICE
from jobs.errors import ConflictError, InputError, ServiceError


class Killed(BaseException):
    """Simulates a kill: no code of ours catches it."""


def on_path() -> PostgresBinaries | None:
    """Return a Postgres on PATH of an older major version than ours."""
    ours = find_postgres().major
    for major in range(ours - 1, OLDEST_POSTGRES - 1, -1):
        try:
            return find_postgres(major=major, folders=[Path(folder) for folder in os.get_exec_path()])
        except ServiceError:
            continue
    return None


@contextmanager
def connected(data_dir: DataDir, binaries: PostgresBinaries | None = None) -> Iterator[psycopg.Connection]:
    server = prepare_postgres(
        data_dir.postgres, log_path=data_dir.logs / "postgres.log", run_dir=data_dir.run / "pg", binaries=binaries
    )
    with moving.running(server), psycopg.connect(server.create_database(), autocommit=True) as connection:
        yield connection


def fill(data_dir: DataDir, binaries: PostgresBinaries) -> None:
    with connected(data_dir, binaries) as connection:
        connection.execute("CREATE TABLE kept (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text text)")
        for role in ROLES:
            connection.execute(f"CREATE ROLE {role}")
        connection.execute(f"ALTER TABLE kept OWNER TO {OWNER}")
        connection.execute(f"GRANT SELECT ON kept TO {SERVICE}")
        connection.execute("INSERT INTO kept (text) SELECT 'line ' || n FROM generate_series(1, 1000) AS n")


def content(data_dir: DataDir) -> tuple[int, int]:
    """Return the number of rows and the next number; checks that owner and rights have not changed."""
    rights = f"SELECT relowner::regrole::text, has_table_privilege('{SERVICE}', oid, 'SELECT') FROM pg_class"
    with connected(data_dir) as connection:
        assert connection.execute(f"{rights} WHERE relname = 'kept'".encode()).fetchall() == [(OWNER, True)]
        ((num_rows,),) = connection.execute("SELECT count(*) FROM kept").fetchall()
        ((following,),) = connection.execute("INSERT INTO kept (text) VALUES ('later') RETURNING n").fetchall()
    return num_rows, following


def run_move(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cli.main", "db", "move", "--data-dir", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_data_of_an_older_postgres_goes_on_with_ours(memory_folder: Path) -> None:
    old = on_path()
    if old is None:
        pytest.skip("needs an older Postgres on PATH")
    root = memory_folder / "older"
    with locked(root) as data_dir:
        fill(data_dir, old)
    assert major_of(data_dir.postgres) == old.major

    first, second = run_move(root), run_move(root)

    ours = find_postgres().major
    assert (first.returncode, first.stderr) == (0, "")
    assert f"is of Postgres {ours} now" in first.stdout
    assert str(kept_place(data_dir.postgres, old.major)) in first.stdout
    assert second.stdout == f"{data_dir.postgres} is already of Postgres {ours}, the version of this installation\n"
    assert major_of(kept_place(data_dir.postgres, old.major)) == old.major
    assert content(data_dir) == (1000, 1001)


def test_a_move_that_is_killed_can_be_run_again(memory_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One Postgres stands for both. Each try makes a cluster, about a second."""
    ours = find_postgres()
    real = moved_cluster.rename
    with locked(memory_folder / "killed") as data_dir:
        fill(data_dir, ours)
        folder = data_dir.postgres
        for num_renames in (0, 1, 2):
            left = iter(range(num_renames))

            def rename(source: Path, target: Path, left: Iterator[int] = left) -> None:
                if next(left, None) is None:
                    raise Killed
                real(source, target)

            monkeypatch.setattr(moving, "rename", rename)
            monkeypatch.setattr(moving, "put_in_place", lambda _: rename(folder, folder))
            with pytest.raises(Killed):
                moving.move_cluster(data_dir, old=ours, new=ours, say=lambda _: None)
        assert not folder.exists()
        assert moved_place(folder).exists()

        assert content(data_dir) == (1000, 1001)  # a start finishes it
        assert major_of(kept_place(folder, ours.major)) == ours.major
        assert not unfinished_place(folder).exists()
        with pytest.raises(ConflictError, match="already exists"):
            moving.move_cluster(data_dir, old=ours, new=ours, say=lambda _: None)


def test_what_there_is_nothing_to_move_of_is_said(tmp_path: Path) -> None:
    done = run_move(tmp_path / "none")

    assert done.returncode == 2
    assert "there is no Postgres of `tokenmill up` in" in done.stderr
    assert not (tmp_path / "none").exists()


def test_a_start_with_data_of_another_postgres_names_the_command(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "PG_VERSION").write_text("11\n")
    with pytest.raises(
        ServiceError, match=r"Postgres 11 created this data directory.*`tokenmill db move`, with the same"
    ):
        prepare_postgres(tmp_path / "postgres", log_path=tmp_path / "log", run_dir=tmp_path / "run")


def test_programs_are_found_where_a_wheel_was_unpacked(tmp_path: Path) -> None:
    folder = tmp_path / "pgserver" / "pginstall" / "bin"
    folder.mkdir(parents=True)
    for name in ("initdb", "postgres"):
        (folder / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 16.2'\n")
        (folder / name).chmod(0o755)

    assert find_programs(16, tmp_path).postgres == folder / "postgres"
    with pytest.raises(InputError, match=r"there is Postgres 16 in .*, and 17 is needed: --programs /usr/lib"):
        find_programs(17, tmp_path)
    with pytest.raises(InputError, match=r"there is no Postgres in .*pip install --target FOLDER pgserver==0.1.4"):
        find_programs(16, tmp_path / "elsewhere")
