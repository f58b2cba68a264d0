"""Tests of the previous release while the next schema is created under it: its API accepts, its worker answers."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from cli.embedded.sockets import free_port
from jobs.access import arrange
from jobs.audit.audit import audit
from jobs.batches import sweeps
from jobs.batches.finalisation import finalise_batch
from jobs.batches.validation import validate_batch
from jobs.database import connect, is_ready, sessions, upgrade
from jobs.settings import Settings
from jobs.storage import Storage

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PREVIOUS = "v0.2.0"
"""The first release whose schema later ones expand; until it is tagged there is none to test."""
PREPARE = """
import sys
from jobs.accounts import tenants
from jobs.database import connect, sessions, upgrade
upgrade(sys.argv[1])
with sessions(connect(sys.argv[1])).begin() as session:
    tenant = tenants.create_tenant(session, "acme", limit_tokens=1_000_000)
    print(tenants.create_key(session, tenant.id)[1])
"""


@pytest.fixture
def previous(tmp_path: Path) -> Path:
    """The previous release as it was; skipped if the checkout does not have its tag."""
    archive = subprocess.run(["git", "archive", PREVIOUS], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"needs the tag {PREVIOUS}, which is not made yet, or not cloned: `git fetch --tags`")
    folder = tmp_path / "previous"
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    (tmp_path / "objects").mkdir()
    return Storage((tmp_path / "objects").as_uri())


class Release:
    """Processes of the previous release."""

    def __init__(self, folder: Path, database_url: str, storage: Storage) -> None:
        self._folder = folder
        environment = {
            "DATABASE_URL": database_url,
            "STORAGE_URL": storage.url,
            "REDIS_URL": "redis://127.0.0.1:1/0",
            "CLAIM_ALONE_SECONDS": "0.5",
            "HEARTBEAT_SECONDS": "0.5",
            "LEASE_SECONDS": "300",  # on a busy machine its holder may wait longer than a default lease
            "WORKER_CHUNKS": "2",
            "DRAIN_SECONDS": "0",
        }
        ours = {f"TOKENMILL_{name}": value for name, value in environment.items()}
        # Its kernels are compiled each time, which takes half as long if their speed does not matter.
        self._environment = os.environ | ours | {"PYTHONPATH": str(folder), "NUMBA_OPT": "0"}

    def run(self, code: str, *arguments: str) -> str:
        command = [sys.executable, "-c", code, *arguments]
        where: dict[str, Any] = {"cwd": self._folder, "env": self._environment}
        said: str = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, **where).stdout
        return said

    @contextmanager
    def role(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        log = self._folder / f"{arguments[0]}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "cli.main", *arguments],
                cwd=self._folder,
                env=self._environment,
                stdout=out,
                stderr=out,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            sys.stdout.write(log.read_text()[-3000:])  # pytest shows it if the test fails


@pytest.fixture
def release(previous: Path, empty_database: str, storage: Storage) -> Release:
    return Release(previous, empty_database, storage)


@pytest.fixture
def maker(empty_database: str) -> Iterator[sessionmaker[Session]]:
    engine = connect(empty_database)
    yield sessions(engine)
    engine.dispose()


def until(holds: Callable[[], Any], *needed: subprocess.Popen[bytes]) -> None:
    """Wait without a limit for a condition; the processes needed for it must not end meanwhile."""
    while not holds():
        assert [process.args for process in needed if process.poll() is not None] == []
        threading.Event().wait(0.1)


class Submitted:
    """A batch of the previous release, which the rest of this one continues."""

    def __init__(self, http: httpx.Client, maker: sessionmaker[Session], storage: Storage, *, max_tokens: int) -> None:
        self._http, self._maker, self._storage = http, maker, storage
        self._settings = Settings(chunk_lines=8)
        lines = "\n".join(json.dumps(line(number, max_tokens)) for number in range(32)).encode()
        file = http.post("/v1/files", files={"file": ("in.jsonl", lines)}, data={"purpose": "batch"}).raise_for_status()
        wanted = {"input_file_id": file.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        self.id: str = http.post("/v1/batches", json=wanted).raise_for_status().json()["id"]
        validate_batch(maker, storage, self.id, settings=self._settings)

    def look(self) -> dict[str, Any]:
        found: dict[str, Any] = self._http.get(f"/v1/batches/{self.id}").raise_for_status().json()
        return found

    def finish(self, worker: subprocess.Popen[bytes]) -> list[str]:
        until(lambda: self.look()["request_counts"]["completed"] == 32, worker)
        with self._maker.begin() as session:
            sweeps.finish_ready(session)
        finalise_batch(self._maker, self._storage, self.id, settings=self._settings)
        output = self._http.get(f"/v1/files/{self.look()['output_file_id']}/content").raise_for_status()
        return [json.loads(each)["custom_id"] for each in output.text.splitlines()]


def line(number: int, max_tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Hello {number}"}]
    body = {"model": "demo", "messages": messages, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
    return {"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


@pytest.mark.timeout(900)  # finds hangs; the waits themselves have no limit
def test_the_release_before_answers_drains_and_bills_right_on_the_schema_of_this_one(
    release: Release, empty_database: str, maker: sessionmaker[Session], storage: Storage
) -> None:
    key, port = release.run(PREPARE, empty_database).strip(), free_port()
    model = ["--model", "demo", "--path", str(ROOT / "examples" / "demo_model"), "--dtype", "float32"]
    headers = {"Authorization": f"Bearer {key}"}
    with (
        release.role("api", "--port", str(port)) as api,
        release.role("worker", *model, "--max-num-seqs", "4") as worker,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=None) as http,
    ):
        until(lambda: answers(http), api)
        until(lambda: ask(maker, "SELECT count(*) FROM worker") == 1, worker)
        upgrade(empty_database)
        assert arrange(empty_database) is None
        assert is_ready(maker.kw["bind"])

        short = Submitted(http, maker, storage, max_tokens=5)
        assert sorted(short.finish(worker)) == sorted(f"c{number}" for number in range(32))

        long = Submitted(http, maker, storage, max_tokens=450)
        until(lambda: ask(maker, "SELECT count(*) FROM chunk WHERE state = 'leased' AND started_fence = fence"), worker)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert ask(maker, "SELECT count(*) FROM chunk WHERE state = 'leased'") == 0
        assert ask(maker, "SELECT max(losses) FROM chunk") == 0
        assert long.look()["status"] == "in_progress"
    with maker() as session:
        assert audit(session) == []


def answers(http: httpx.Client) -> bool:
    try:
        return http.get("/healthz").is_success
    except httpx.TransportError:
        return False


def ask(maker: sessionmaker[Session], question: str) -> Any:
    with maker() as session:
        return session.scalar(text(question))
