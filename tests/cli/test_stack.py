"""Tests of the embedded stack: the preparation of its database, and `tokenmill up` from start to stop."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest
from kombu import Connection
from typer.testing import CliRunner

from cli import up_command
from cli.app import app
from cli.data_dir import DataDir, locked
from cli.embedded.moving import running
from cli.embedded.postgres import prepare_postgres
from cli.embedded.servers import chosen_environment
from cli.embedded.sockets import free_port
from cli.served_model import ServedModel
from cli.stack import (
    RunningStack,
    _prepare_database,
    _require_metrics_ports,
    _shown_host,
    _with_gpu,
    _with_metrics_port,
    require_free_port,
)
from cli.supervisor import Supervisor
from jobs.access import PREPARE, SERVICE
from jobs.errors import ConflictError, InputError
from tests import old_databases
from tests.cli.service import typed

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
MODEL = ServedModel(name="tiny", path="/models/tiny")


def test_a_second_start_keeps_the_tenant_and_its_key_and_moves_the_model(tmp_path: Path, database_url: str) -> None:
    with locked(tmp_path) as data_dir:
        key = _prepare_database(database_url, data_dir, MODEL, is_ours=True)
        assert data_dir.key_file.stat().st_mode & 0o777 == 0o600
        again = _prepare_database(database_url, data_dir, ServedModel(name="tiny", path="/models/b"), is_ours=True)
    assert again == key
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT name FROM tenant").fetchall() == [("default",)]
        assert connection.execute("SELECT count(*) FROM api_key").fetchone() == (1,)
        assert connection.execute("SELECT name, path FROM model").fetchall() == [("tiny", "/models/b")]


def test_a_command_does_not_move_the_model_that_batches_wait_for(tmp_path: Path, database_url: str) -> None:
    with locked(tmp_path) as data_dir:
        _prepare_database(database_url, data_dir, MODEL, is_ours=True, may_move=False)
        other = ServedModel(name="tiny", path="/models/b")
        _prepare_database(database_url, data_dir, other, is_ours=True, may_move=False)
        _insert_leased_chunk(database_url)
        with pytest.raises(ConflictError, match=r"wait for the model 'tiny' from /models/b.*batch_1"):
            _prepare_database(database_url, data_dir, MODEL, is_ours=True, may_move=False)
        _prepare_database(database_url, data_dir, other, is_ours=True, may_move=False)
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT path FROM model").fetchall() == [("/models/b",)]


def test_each_role_on_a_machine_shows_its_metrics_at_a_port_of_its_own() -> None:
    given = {"TOKENMILL_METRICS_PORT": "9100"}
    assert [_with_metrics_port(given, number)["TOKENMILL_METRICS_PORT"] for number in (0, 1, 2)] == [
        "9100",
        "9101",
        "9102",
    ]
    assert _with_metrics_port({"TOKENMILL_METRICS_PORT": "0"}, 1) == {"TOKENMILL_METRICS_PORT": "0"}
    assert _with_metrics_port({}, 1) == {}


def test_ports_of_metrics_that_there_are_not_enough_of_are_refused() -> None:
    _require_metrics_ports(65_532, num_workers=2)
    with pytest.raises(InputError, match=r"is 65533, and 4 ports .* Choose 65532 or lower"):
        _require_metrics_ports(65_533, num_workers=2)


def test_a_key_that_opens_nothing_any_more_is_replaced(tmp_path: Path, database_url: str) -> None:
    with locked(tmp_path) as data_dir:
        key = _prepare_database(database_url, data_dir, MODEL, is_ours=True)
        with psycopg.connect(database_url) as connection:
            connection.execute("UPDATE api_key SET revoked_at = now()")
        again = _prepare_database(database_url, data_dir, MODEL, is_ours=True)
        assert again != key
        assert data_dir.key_file.read_text() == again + "\n"


@pytest.mark.parametrize(("is_ours", "state", "losses"), [(True, "ready", 1), (False, "leased", 1)])
def test_leases_of_killed_workers_come_back_as_no_loss_in_a_database_of_our_own(
    tmp_path: Path, database_url: str, *, is_ours: bool, state: str, losses: int
) -> None:
    with locked(tmp_path) as data_dir:
        _prepare_database(database_url, data_dir, MODEL, is_ours=is_ours)
        _insert_leased_chunk(database_url)
        _prepare_database(database_url, data_dir, MODEL, is_ours=is_ours)
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT state, losses FROM chunk").fetchall() == [(state, losses)]


def _insert_leased_chunk(database_url: str) -> None:
    """A chunk that was lost once already, and is leased for another hour."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT id FROM tenant").fetchone()
        assert row is not None
        values = {"tenant": row[0]}
        connection.execute(
            "INSERT INTO file (id, tenant_id, purpose, filename, size_bytes, object_key)"
            " VALUES ('file_1', %(tenant)s, 'batch', 'in.jsonl', 1, 'in')", values)  # fmt: skip
        _insert(connection, "batch", {
            "id": "batch_1", "tenant_id": row[0], "input_file_id": "file_1", "endpoint": "/v1/completions",
            "completion_window": "24h", "state": "in_progress", "model": "tiny",
        })  # fmt: skip
        _insert(connection, "chunk", {
            "batch_id": "batch_1", "tenant_id": row[0], "model": "tiny", "state": "leased", "losses": 1, "fence": 1,
        })  # fmt: skip
        connection.execute("UPDATE chunk SET lease_until = now() + interval '1 hour', worker_id = 'worker_1'")


def _insert(connection: psycopg.Connection, table: str, values: dict[str, object]) -> None:
    """Insert a row; required columns that are not given get a value of their type."""
    needed = connection.execute(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s"
        " AND is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO'"
        " AND is_generated = 'NEVER'", [table]).fetchall()  # fmt: skip
    fill: dict[str, object] = {"bigint": 1, "integer": 1, "smallint": 1, "text": "normal"}
    row = {name: fill.get(kind, "2030-01-01T00:00:00Z") for name, kind in needed} | values
    names, marks = ", ".join(row), ", ".join(["%s"] * len(row))
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(row.values()))


def test_several_workers_get_a_gpu_each() -> None:
    assert _with_gpu({"A": "1"}, 0, of=1) == {"A": "1"}
    assert [_with_gpu({}, number, of=2)["CUDA_VISIBLE_DEVICES"] for number in range(2)] == ["0", "1"]
    assert _with_gpu({"CUDA_VISIBLE_DEVICES": "4,6"}, 1, of=2)["CUDA_VISIBLE_DEVICES"] == "6"


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]")]
)
def test_the_printed_address_is_one_a_client_can_use(host: str, shown: str) -> None:
    assert _shown_host(host) == shown


@pytest.mark.parametrize(
    ("variable", "url", "is_ours"),
    [
        ("TOKENMILL_DATABASE_URL", "postgresql://tokenmill@/tokenmill?host=/data/run/postgres", True),
        ("TOKENMILL_DATABASE_URL", "postgresql://tokenmill@/tokenmill?host=%2Fdata%2Frun%2Fpostgres", True),
        ("TOKENMILL_DATABASE_OWNER_URL", "postgresql://tokenmill@/tokenmill?host=/data/run/postgres", True),
        ("TOKENMILL_DATABASE_OWNER_URL", "postgresql://tokenmill:secret@database:5432/tokenmill", False),
        ("TOKENMILL_DATABASE_PREPARE_URL", "postgresql://tokenmill_prepare:secret@database/tokenmill", False),
        ("TOKENMILL_REDIS_URL", "redis+socket:///data/run/valkey/valkey.sock?virtual_host=0", True),
        ("TOKENMILL_STORAGE_URL", "file:///data/objects", True),
        ("TOKENMILL_DATABASE_URL", "postgresql://tokenmill@/tokenmill?host=/data/run/postgres2", False),
        ("TOKENMILL_DATABASE_URL", "postgresql://tokenmill:secret@database:5432/tokenmill", False),
        ("TOKENMILL_REDIS_URL", "redis://localhost:6379/0", False),
        ("TOKENMILL_STORAGE_URL", "s3://bucket/prefix", False),
    ],
)
@pytest.mark.parametrize("is_external", [False, True])
def test_a_server_of_the_environment_is_used_on_request_alone_and_either_is_said(
    monkeypatch: pytest.MonkeyPatch, variable: str, url: str, *, is_ours: bool, is_external: bool
) -> None:
    monkeypatch.setenv(variable, url)
    said: list[str] = []
    data_dir = DataDir(root=Path("/data"))
    environment = chosen_environment(data_dir, {}, is_external=is_external, say=said.append)
    assert environment.get(variable) == (url if is_external and not is_ours else None)
    assert len(said) == (0 if is_ours else 1)
    assert "secret" not in "".join(said)
    assert is_ours or said[0].startswith(f"{variable} is set")


def test_a_data_directory_is_free_again_once_its_owner_is_done(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(ConflictError, match=f"pid {os.getpid()}"), locked(tmp_path):
        pass
    with locked(tmp_path) as data_dir:
        assert data_dir.objects.stat().st_mode & 0o777 == 0o700


@contextmanager
def _up(
    data_dir: Path, port: int, *more: str, exported: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `tokenmill up` until it has printed its exports; yield the process and that line."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL_")}
    command = [sys.executable, "-m", "cli.main", "up", "--data-dir", str(data_dir), "--port", str(port), *more]
    with (
        (data_dir.parent / "up.err").open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT,
            env={**environment, **(exported or {}), "PYTHONPATH": str(ROOT)},
        ) as process,
    ):  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (data_dir.parent / "up.err").read_text()
            yield process, line
        finally:
            process.kill()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """An empty folder with a path short enough for sockets: Valkey shows its socket in its command line."""
    with tempfile.TemporaryDirectory(prefix="up-") as folder:
        Path(folder).chmod(0o755)  # as root, Postgres runs as another user
        yield Path(folder)


def _ours(data_dir: Path) -> list[psutil.Process]:
    """Return every process that names `data_dir` in its command line."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if any(str(data_dir) in part for part in process.info["cmdline"] or [])
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def _exports_of(printed: IO[str] | None) -> dict[str, str]:
    """Read the line of `--show-env` as a shell does."""
    assert printed is not None
    command, *pairs = shlex.split(printed.readline())
    variables = dict(pair.split("=", 1) for pair in pairs)
    assert (command, len(variables)) == ("export", 4)
    return variables


def _assert_a_role_can_be_started_with(variables: Mapping[str, str]) -> None:
    """Connect to the database and the broker of these variables."""
    listed = CliRunner().invoke(app, ["models", "list"], env=variables, catch_exceptions=False)
    assert "demo\t" in listed.stdout
    with Connection(variables["TOKENMILL_REDIS_URL"]) as broker:
        broker.ensure_connection(max_retries=1)
    assert Path(urlsplit(variables["TOKENMILL_STORAGE_URL"]).path).is_dir()


def _assert_its_life_is_shown(data_dir: Path) -> None:
    status = CliRunner().invoke(app, ["status", "--data-dir", str(data_dir)], catch_exceptions=False)
    assert status.exit_code == 0, status.stdout
    roles = [line.split("\t")[:2] for line in status.stdout.splitlines() if "running" in line.split("\t")]
    assert [name for name, _ in roles] == ["postgres", "valkey", "api", "control", "dispatch"]
    logged = CliRunner().invoke(app, ["logs", "--data-dir", str(data_dir), "-n", "1"], catch_exceptions=False)
    assert [line.split(" | ")[0].strip() for line in logged.stdout.splitlines()] == sorted(
        path.stem for path in (data_dir / "logs").glob("*.log") if path.stat().st_size
    )


def _make_an_old_database(root: Path) -> None:
    """Leave a folder whose database is from before the baseline: one superuser created it, and owns it."""
    with locked(root) as data_dir:
        server = prepare_postgres(
            data_dir.postgres, log_path=data_dir.logs / "postgres.log", run_dir=data_dir.run / "postgres"
        )
        with running(server):
            url = server.create_database()
            old_databases.load(url, "0061")
            with psycopg.connect(url) as connection:
                connection.execute("TRUNCATE public.tenant, public.result, public.worker CASCADE")
                connection.execute("INSERT INTO public.tenant (id, name) VALUES ('tenant_1', 'older')")
                connection.execute("INSERT INTO public.budget (tenant_id) VALUES ('tenant_1')")


def _assert_its_owner_backs_it_up(data_dir: Path, folder: Path) -> None:
    """Run the commands that read the whole database: one as its owner, the others as a service."""
    for arguments in (["tenants", "list"], ["audit"], ["db", "upgrade"], ["db", "backup", str(folder)]):
        done = CliRunner().invoke(app, [*arguments, "--data-dir", str(data_dir)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert arguments[0] != "tenants" or "older" in done.stdout
    assert (folder / "database.dump").stat().st_size > 0


@pytest.mark.timeout(600)  # two starts of everything
def test_up_prints_its_exports_survives_kill_9_and_stops_cleanly(short_path: Path) -> None:
    data_dir, port = short_path / "data", free_port()
    _make_an_old_database(data_dir)
    with _up(data_dir, port, "--show-env") as (process, first):
        shell = _exports_of(process.stdout)
        assert [urlsplit(shell[f"TOKENMILL_DATABASE_{whose}URL"]).username for whose in ("", "PREPARE_")] == [
            SERVICE,
            PREPARE,
        ]
        url = rf"TOKENMILL_BASE_URL=(http://127\.0\.0\.1:{port}/v1)"
        exports = re.fullmatch(rf"export {url} TOKENMILL_API_KEY=(tm-\S+) TOKENMILL_DATA_DIR={data_dir}\n", first)
        assert exports
        request = urllib.request.Request(f"{exports[1]}/models", headers={"Authorization": f"Bearer {exports[2]}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert b'"demo"' in answer.read()
        children = [child for child in _ours(data_dir) if child.pid != process.pid]
        assert len(children) >= 6
        shown = [part for child in children for part in child.cmdline()]
        secret = [exports[2], shell["TOKENMILL_DATABASE_URL"], shell["TOKENMILL_REDIS_URL"]]
        assert not any(text in part for text in secret for part in shown)
        process.kill()
        process.wait(10)
        _, alive = psutil.wait_procs(children, timeout=30)
        assert [child for child in alive if child.status() != psutil.STATUS_ZOMBIE] == []
    assert exports[2] not in (short_path / "up.err").read_text()
    # In the shell that has the exports of the first start, too.
    with _up(data_dir, port, "--workers", "0", "--show-env", exported=shell) as (process, second):
        assert second == f"export TOKENMILL_BASE_URL={exports[1]} TOKENMILL_DATA_DIR={data_dir}\n", (
            "the key was printed once"
        )
        assert _exports_of(process.stdout) == shell
        _assert_a_role_can_be_started_with(shell)
        _assert_its_life_is_shown(data_dir)
        _assert_its_owner_backs_it_up(data_dir, short_path / "backup")
        assert not any("worker" in child.cmdline() for child in _ours(data_dir))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert _ours(data_dir) == []
    assert "stopped" in (short_path / "up.err").read_text().splitlines()[-1]


@pytest.mark.parametrize("data_dir", [None, Path("/data/tm")])
@pytest.mark.parametrize("is_key_shown", [True, False])
def test_where_the_key_is_not_printed_it_is_said_how_to_see_it(
    capsys: pytest.CaptureFixture[str], data_dir: Path | None, *, is_key_shown: bool
) -> None:
    url = "http://127.0.0.1:1/v1"
    stack = RunningStack(
        base_url=url, api_key="tm-made", is_key_new=False, environment={}, supervisor=Supervisor(say=print)
    )
    up_command._tell_where(stack, data_dir=data_dir, is_key_shown=is_key_shown)
    printed, said = capsys.readouterr()
    expected = [f"TOKENMILL_BASE_URL={url}"]
    expected += ["TOKENMILL_API_KEY=tm-made"] * is_key_shown + ["TOKENMILL_DATA_DIR=/data/tm"] * (data_dir is not None)
    assert printed.split() == ["export", *expected]
    assert ("--show-key" in said, "tm-made" in said) == (not is_key_shown, False)


@pytest.mark.parametrize("host", ["300.1.1.1", "203.0.113.1", "nosuch.invalid", "::zz"])
def test_a_host_that_is_no_address_of_this_machine_is_refused_as_the_option(host: str) -> None:
    with pytest.raises(InputError) as caught:
        require_free_port(host, 8000)
    assert f"--host is {host!r}" in caught.value.message


def test_a_dtype_that_is_none_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = typed("up", "--data-dir", tmp_path / "data", "--dtype", "fp8", variables={})
    assert (done.returncode, "--dtype" in done.stderr, (tmp_path / "data").exists()) == (2, True, False)


def test_a_chat_template_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = typed("up", "--data-dir", tmp_path / "data", "--chat-template", tmp_path / "none", variables={})
    assert (done.returncode, "--chat-template" in done.stderr) == (2, True)
    assert not (tmp_path / "data").exists()
