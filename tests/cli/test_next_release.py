"""Tests of this release while the next one is running: databases and rows made by a later schema.

The next release's schema is this one's with one more column and a revision unknown here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from cli.embedded.sockets import free_port
from jobs.database import head_revision
from tests.api.waiting import wait_until_alive

pytestmark = [pytest.mark.long, pytest.mark.changes_schema, pytest.mark.usefixtures("quick_processes")]

ROOT = Path(__file__).resolve().parents[2]
NEXT = "9998"


@pytest.fixture
def environment(database_url: str, tmp_path: Path) -> dict[str, str]:
    return os.environ | {
        "TOKENMILL_DATABASE_URL": database_url,
        "TOKENMILL_STORAGE_URL": (tmp_path / "objects").as_uri(),
        "PYTHONPATH": str(ROOT),
    }


@pytest.fixture
def running_api(environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    port, log = free_port(), tmp_path / "api.log"
    command = [sys.executable, "-m", "cli.main", "api", "--port", str(port)]
    with (
        log.open("wb") as out,
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out) as process,
    ):
        try:
            wait_until_alive(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def upgrade_to_next(database_url: str, *, floor: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("ALTER TABLE batch ADD COLUMN of_the_next_release text")
        connection.execute("UPDATE alembic_version SET version_num = %s", [NEXT])
        connection.execute("UPDATE schema_floor SET revision = %s", [floor])


def typed(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cli.main", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_an_api_stays_ready_when_the_next_schema_is_made(running_api: str, database_url: str) -> None:
    assert httpx.get(f"{running_api}/readyz").status_code == 200
    upgrade_to_next(database_url, floor=head_revision())
    assert httpx.get(f"{running_api}/readyz").status_code == 200


def test_this_release_starts_on_the_next_schema_as_it_does_on_the_way_back(
    environment: dict[str, str], database_url: str, request: pytest.FixtureRequest
) -> None:
    upgrade_to_next(database_url, floor=head_revision())
    upgraded = typed(environment, "db", "upgrade")
    assert (upgraded.returncode, NEXT in upgraded.stdout) == (0, True), upgraded.stderr
    url = request.getfixturevalue("running_api")
    assert httpx.get(f"{url}/readyz").status_code == 200


def test_a_schema_that_is_not_taken_over_is_refused_by_up_and_upgrade_alike(
    environment: dict[str, str], database_url: str, valkey_url: str, tmp_path: Path
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0060'")
    upgraded = typed(environment, "db", "upgrade")
    servers = environment | {"TOKENMILL_EXTERNAL_SERVERS": "1", "TOKENMILL_REDIS_URL": valkey_url}
    started = typed(servers, "up", "--data-dir", str(tmp_path / "data"), "--port", str(free_port()))
    assert (upgraded.returncode, started.returncode) == (1, 1)
    assert "0060" in upgraded.stderr
    assert started.stderr.splitlines()[-1] == upgraded.stderr.splitlines()[-1]
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("0060",)


@pytest.mark.parametrize("role", [("api", "--port", "0"), ("control",), ("dispatch",), ("db", "upgrade")], ids=" ".join)
def test_this_release_does_not_start_on_a_schema_that_has_lost_what_it_uses(
    role: tuple[str, ...], environment: dict[str, str], database_url: str
) -> None:
    upgrade_to_next(database_url, floor=NEXT)
    port = [str(free_port()) if part == "0" else part for part in role]
    done = typed(environment, *port)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
