"""The prepare role as a process of its own: killed again and again, its readers too; every document is read once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.extraction.pages import make_pdf
from jobs.audit import audit
from jobs.batches.finalisation import finalise_batch
from jobs.settings import Settings
from jobs.states import BatchState
from jobs.storage import Storage
from tests.workers.preparing.builders import Library
from workers.app import make_app
from workers.dispatcher import Dispatcher
from workers.hints import HintSender

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
WAIT_SECONDS = 120


@pytest.fixture
def settings(database_url: str, valkey_url: str, storage: Storage) -> Settings:
    return Settings(
        database_url=database_url,
        redis_url=valkey_url,
        storage_url=storage.url,
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
def start_prepare(settings: Settings, tmp_path: Path) -> Iterator[Start]:
    environment = {f"TOKENMILL_{name.upper()}": str(value) for name, value in settings.model_dump().items()}
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        with (tmp_path / "prepare.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "cli.main", "prepare"],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=os.environ | environment,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


class Watch:
    """Looks at the database until something is so."""

    def __init__(self, library: Library, log: Path) -> None:
        self._library = library
        self._log = log

    def value(self, sql: str) -> Any:
        return self._library.rows(sql)[0][0]

    def until(self, sql: str) -> None:
        for _ in range(WAIT_SECONDS * 20):
            if self.value(sql):
                return
            threading.Event().wait(0.05)
        raise AssertionError(f"never: {sql}\n{self._log.read_text()[-3000:]}")


@pytest.fixture
def watch(library: Library, tmp_path: Path) -> Watch:
    return Watch(library, tmp_path / "prepare.log")


def readers_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if "extraction.documents.process.child" in child.cmdline()]


def documents(count: int) -> dict[str, bytes]:
    """Return so many documents, each twentieth of them broken."""
    pdf = make_pdf(3, seed=2)
    return {f"{n}.pdf": pdf[:-200] if n % 20 == 7 else pdf + b"\n%% %d\n" % n for n in range(count)}


@pytest.mark.usefixtures("dispatching")
def test_documents_are_read_once_each_however_often_worker_and_readers_are_killed(
    library: Library, start_prepare: Start, watch: Watch, settings: Settings
) -> None:
    batch_id = library.read(documents(200))
    for num_results in (10, 45, 80, 115, 150):
        worker = start_prepare()
        watch.until(f"SELECT count(*) >= {num_results - 8} FROM result")
        for reader in readers_of(worker)[:1]:
            reader.send_signal(signal.SIGKILL)
        watch.until(f"SELECT count(*) >= {num_results} FROM result")
        worker.kill()
        worker.wait()
    last = start_prepare()
    watch.until("SELECT count(*) = 200 FROM result")
    watch.until("SELECT state = 'finalizing' FROM batch")
    last.send_signal(signal.SIGTERM)
    assert last.wait(WAIT_SECONDS) == 0

    broken = {f"d{n}": ("truncated", None) for n in range(200) if n % 20 == 7}
    assert library.errors(batch_id) == broken
    assert watch.value("SELECT max(losses) FROM chunk") == 0, "a kill is held against no document"
    assert finalise_batch(library.sessions, library.storage, batch_id, settings=settings) is BatchState.COMPLETED
    with library.sessions() as session:
        assert audit(session, storage=library.storage) == []
    (told,) = library.rows("""
        SELECT num_completed, num_failed, (SELECT sum(num_results) FROM ledger), input_tokens + output_tokens,
            cost_picos
        FROM batch
    """)
    assert told == (190, 10, 200, 0, 0)
    keys = {body["object_key"] for body in library.bodies(batch_id) if "object_key" in body}
    assert len(keys) == 190
    assert all(library.storage.exists(key) for key in keys)


def test_a_worker_that_is_told_to_stop_gives_its_chunks_back_and_ends_its_readers(
    library: Library, start_prepare: Start, watch: Watch
) -> None:
    library.read(documents(100))
    worker = start_prepare()
    watch.until("SELECT count(*) >= 1 FROM result")
    readers = readers_of(worker)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(WAIT_SECONDS) == 0
    assert watch.value("SELECT count(*) FROM chunk WHERE state = 'leased'") == 0
    assert watch.value("SELECT max(losses) FROM chunk") == 0
    assert watch.value("SELECT bool_and(stopped_at IS NOT NULL) FROM worker")
    assert readers
    assert psutil.wait_procs(readers, timeout=WAIT_SECONDS)[1] == []
