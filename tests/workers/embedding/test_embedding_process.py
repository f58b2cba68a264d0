"""A worker of an encoder as a process of its own: killed again and again, every line is answered and billed once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session, sessionmaker

from engine.pooling.embedder import Embedder
from jobs.audit import audit
from jobs.batches.finalisation import finalise_batch
from jobs.settings import Settings
from jobs.states import BatchState
from jobs.storage import Storage
from tests.workers.embedding.builders import MODEL, Desk, line
from workers.app import make_app
from workers.dispatcher import Dispatcher
from workers.hints import HintSender

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
WAIT_SECONDS = 120
NUM_LINES = 120
TEXTS = ["the sea is cold", "ships sail", "to no port today and wide"] * 8


@pytest.fixture
def settings(database_url: str, valkey_url: str, storage: Storage) -> Settings:
    return Settings(
        database_url=database_url,
        redis_url=valkey_url,
        storage_url=storage.url,
        chunk_lines=8,
        worker_chunks=2,
        claim_alone_seconds=0.5,
        heartbeat_seconds=0.5,
        flush_seconds=0.1,
        flush_results=4,
        lease_seconds=2,
        drain_seconds=0.5,
        dispatch_seconds=0.1,
    )


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """On disk: the worker is another process."""
    (tmp_path / "objects").mkdir()
    return Storage((tmp_path / "objects").as_uri())


@pytest.fixture
def dispatching(maker: sessionmaker[Session], storage: Storage, settings: Settings) -> Iterator[None]:
    """A dispatcher that runs beside the test: lost leases come back."""
    stop = threading.Event()
    dispatcher = Dispatcher(maker, storage, hints=HintSender(make_app(settings.redis_url)), settings=settings)
    thread = threading.Thread(target=dispatcher.run, args=(stop,))
    thread.start()
    yield
    stop.set()
    thread.join()


Start = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture
def start_worker(settings: Settings, encoder_folder: Path, tmp_path: Path) -> Iterator[Start]:
    environment = {f"TOKENMILL_{name.upper()}": str(value) for name, value in settings.model_dump().items()}
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "cli.main", "worker", "--model", MODEL, "--path", str(encoder_folder)]
        with (tmp_path / "worker.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=os.environ | environment)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.mark.usefixtures("dispatching")
def test_every_line_is_answered_and_billed_once_however_often_the_worker_is_killed(
    desk: Desk, start_worker: Start, settings: Settings, embedder: Embedder, tmp_path: Path
) -> None:
    def until(sql: str) -> None:
        for _ in range(WAIT_SECONDS * 20):
            if desk.rows(sql)[0][0]:
                return
            threading.Event().wait(0.05)
        raise AssertionError(f"never: {sql}\n{(tmp_path / 'worker.log').read_text()[-3000:]}")

    batch_id = desk.submit([line(number, TEXTS) for number in range(NUM_LINES)])
    for num_results in (1, 60):
        worker = start_worker()
        until(f"SELECT count(*) >= {num_results} FROM result")
        worker.kill()
        worker.wait()
    last = start_worker()
    until(f"SELECT count(*) = {NUM_LINES} FROM result")
    until("SELECT state = 'finalizing' FROM batch")
    last.send_signal(signal.SIGTERM)
    assert last.wait(WAIT_SECONDS) == 0

    assert finalise_batch(desk.sessions, desk.storage, batch_id, settings=settings) is BatchState.COMPLETED
    with desk.sessions() as session:
        assert audit(session, storage=desk.storage) == []
    tokens = NUM_LINES * sum(embedder.embed(TEXTS).num_tokens)
    billed = "(SELECT sum(num_results) FROM ledger), (SELECT sum(input_tokens) FROM ledger)"
    told = f"SELECT num_completed, num_failed, input_tokens, output_tokens, cost_picos, {billed} FROM batch"
    assert desk.rows(told) == [(NUM_LINES, 0, tokens, 0, 3 * tokens, NUM_LINES, tokens)]
    vectors = [len(body["data"]) for body in desk.bodies(batch_id).values()]
    assert vectors == [len(TEXTS)] * NUM_LINES
