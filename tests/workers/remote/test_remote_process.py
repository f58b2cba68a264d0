"""Tests of a server's worker as its own process: both are killed, every line is answered and billed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs.audit.audit import audit
from jobs.batches.finalisation import finalise_batch
from jobs.settings import Settings
from jobs.states import BatchState
from jobs.storage import Storage
from tests.workers.remote.builders import Post
from tests.workers.remote.fake_server import FakeServer
from tests.workers.role_processes import RoleProcess, Watch, dispatching, ended, hasty_settings, stored_in

pytestmark = pytest.mark.long

NUM_LINES = 64
KEY = "sk-not-shown"


@pytest.fixture
def settings(database_url: str, valkey_url: str, storage: Storage) -> Settings:
    return hasty_settings(database_url, valkey_url, storage, chunk_lines=8, worker_chunks=2)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return stored_in(tmp_path / "objects")


@pytest.fixture
def watch(maker: sessionmaker[Session], tmp_path: Path) -> Watch:
    return Watch(maker, tmp_path / "worker.log")


Start = Callable[[], RoleProcess]


@pytest.fixture
def start_worker(settings: Settings, server: FakeServer, tmp_path: Path) -> Iterator[Start]:
    started: list[RoleProcess] = []
    key_file = tmp_path / "key"
    key_file.write_text(f"{KEY}\n")

    def start() -> RoleProcess:
        options = ("--engine", "openai", "--url", server.url, "--key-file", str(key_file))
        started.append(
            RoleProcess("worker", "--model", "demo", *options, settings=settings, log=tmp_path / "worker.log")
        )
        return started[-1]

    with ended(started):
        yield start


def test_every_line_is_answered_and_billed_once_whatever_is_killed(
    post: Post,
    server: FakeServer,
    start_worker: Start,
    watch: Watch,
    settings: Settings,
    submit_valid: Callable[..., str],
    line: Callable[..., dict[str, Any]],
    tmp_path: Path,
) -> None:
    batch_id = submit_valid([line(number) for number in range(NUM_LINES)])
    server.default = "well-soon"
    with dispatching(post.maker, post.services.storage, settings, settings.redis_url):
        worker = start_worker()
        watch.until("SELECT count(*) >= 1 FROM result")
        shown = [argument for process in psutil.process_iter() for argument in _arguments(process)]
        server.stop_listening()
        server.listen_again()
        watch.until("SELECT count(*) >= 24 FROM result")
        worker.kill()
        worker.wait()
        last = start_worker()
        watch.until("SELECT count(*) >= 40 FROM result")
        server.stop_listening()
        server.listen_again()
        watch.until(f"SELECT count(*) = {NUM_LINES} FROM result")
        watch.until("SELECT state = 'finalizing' FROM batch")
        assert last.stop() == 0
    assert finalise_batch(post.maker, post.services.storage, batch_id, settings=settings) is BatchState.COMPLETED
    with post.maker() as session:
        assert audit(session, storage=post.services.storage) == []
    assert post.billed() == (7 * NUM_LINES, 2 * NUM_LINES)
    assert post.rows("SELECT count(*)::int FROM result WHERE is_error") == [(0,)]
    assert server.headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in (tmp_path / "worker.log").read_text()
    assert not any(KEY in argument for argument in shown)
    assert post.rows(f"SELECT 1 FROM worker WHERE worker::text LIKE '%{KEY}%'") == []


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return list(map(str, process.cmdline()))
    except psutil.Error:
        return []
