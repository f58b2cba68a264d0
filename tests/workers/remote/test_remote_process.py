"""Tests of a server's worker as its own process: both are killed, every line is answered and billed once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.audit.audit import audit
from jobs.batches.finalisation import finalise_batch
from jobs.settings import Settings
from jobs.states import BatchState, EngineChoice
from jobs.storage import Storage
from tests.workers.remote.builders import Post
from tests.workers.remote.fake_server import FakeServer
from tests.workers.role_processes import RoleProcess, Watch, dispatching, ended, hasty_settings, stored_in

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_processes")]

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


Start = Callable[..., RoleProcess]


@pytest.fixture
def start_worker(settings: Settings, server: FakeServer, tmp_path: Path) -> Iterator[Start]:
    started: list[RoleProcess] = []
    key_file = tmp_path / "key"
    key_file.write_text(f"{KEY}\n")

    def start(*more: str) -> RoleProcess:
        options = ("--engine", "openai", "--url", server.url, "--key-file", str(key_file), *more)
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
    assert not any(KEY in argument for argument in shown)
    _require_no_key(post, tmp_path / "worker.log")


def test_the_budget_of_a_day_holds_with_two_workers_outside_the_house_that_are_killed(
    post: Post,
    server: FakeServer,
    start_worker: Start,
    watch: Watch,
    settings: Settings,
    submit_valid: Callable[..., str],
    line: Callable[..., dict[str, Any]],
    tmp_path: Path,
) -> None:
    """Some 600 tokens are reserved for a line, which has 9: the small budget has room for 16 at once."""
    submit_valid([line(number) for number in range(NUM_LINES)], engine=EngineChoice.ANY)
    with post.maker.begin() as session:
        session.execute(text("UPDATE tenant SET may_leave_house = TRUE"))
    server.default = "well-soon"
    prices = ("--input-price", "1", "--output-price", "1")
    used = "SELECT coalesce(sum(used_picos), 0) / 1000000 FROM spill_day"
    with dispatching(post.maker, post.services.storage, settings, settings.redis_url):
        killed = [start_worker("--spill", "--spill-budget", "0.01", *prices) for _ in range(2)]
        watch.until("SELECT count(*) >= 4 FROM result")
        shown = [argument for process in psutil.process_iter() for argument in _arguments(process)]
        for process in killed:
            process.kill()
            process.wait()
        assert 0 < watch.value(used) <= 10_000
        last = start_worker("--spill", "--spill-budget", "1", *prices)
        watch.until(f"SELECT count(*) = {NUM_LINES} FROM result")
        watch.until("SELECT state = 'finalizing' FROM batch")
        assert last.stop() == 0
    assert post.billed() == (7 * NUM_LINES, 2 * NUM_LINES)
    num_asked = sum(num for asked, num in server.num_asked.items() if asked.startswith("Hello"))
    assert 9 * NUM_LINES == watch.value("SELECT sum(spill_picos) / 1000000 FROM ledger") <= 9 * num_asked
    assert 9 * num_asked <= watch.value(used) <= 9 * NUM_LINES + 10_000
    assert post.rows("SELECT num_spilled FROM batch") == [(NUM_LINES,)]
    assert not any(KEY in argument for argument in shown)
    _require_no_key(post, tmp_path / "worker.log")


_TABLES = """
    SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition
        AND relnamespace = current_schema()::regnamespace AND has_table_privilege(oid, 'SELECT')
"""


def _require_no_key(post: Post, log: Path) -> None:
    """Look for the key in the log and in every column of every table."""
    assert KEY not in log.read_text()
    tables = post.rows(_TABLES)
    assert len(tables) > 50
    for (table,) in tables:
        for shown in (KEY, KEY.encode().hex()):
            assert post.rows(f"SELECT 1 FROM {table} AS row WHERE row::text LIKE '%{shown}%'") == [], table


def test_a_worker_that_starts_before_its_server_waits_and_says_so(
    post: Post,
    server: FakeServer,
    start_worker: Start,
    watch: Watch,
    submit_valid: Callable[..., str],
    line: Callable[..., dict[str, Any]],
    tmp_path: Path,
) -> None:
    submit_valid([line(0)])
    server.stop_listening()
    ready = tmp_path / "ready"
    worker = start_worker("--ready-file", str(ready))
    watch.until("SELECT count(*) = 1 FROM worker WHERE engine_stats ->> 'out_reason' LIKE '%cannot be reached%'")
    assert not ready.exists()
    server.listen_again()
    watch.until("SELECT count(*) = 1 FROM result")
    for _ in range(1200):
        if ready.exists():
            break
        threading.Event().wait(0.05)
    assert ready.exists()
    assert post.rows("SELECT engine, engine_stats ->> 'out_reason' FROM worker") == [("other", None)]
    server.stop_listening()
    assert worker.stop() == 0
    waiting = start_worker()
    watch.until("SELECT count(*) = 1 FROM worker WHERE engine = 'unknown'")
    assert waiting.stop() == 0
    server.listen_again()


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return list(map(str, process.cmdline()))
    except psutil.Error:
        return []
