"""The GPU worker as a process of its own, on the demo model: killed engines, absent brokers, orderly ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.settings import Settings
from jobs.storage import Storage
from workers.app import make_app
from workers.dispatcher import Dispatcher
from workers.hints import HintSender

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
DEMO_MODEL = ROOT / "examples" / "demo_model"
NO_BROKER = "redis://127.0.0.1:1/0"
WAIT_SECONDS = 120


@pytest.fixture
def settings() -> Settings:
    return Settings(
        chunk_lines=8,
        claim_alone_seconds=0.5,
        heartbeat_seconds=0.5,
        worker_chunks=2,
        drain_seconds=0.5,
        dispatch_seconds=0.1,
    )


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """On disk: the worker is another process."""
    (tmp_path / "objects").mkdir()
    return Storage((tmp_path / "objects").as_uri())


MakeLines = Callable[[int, int], list[dict[str, Any]]]


class WorkerProcess:
    def __init__(
        self,
        *,
        database_url: str,
        redis_url: str,
        storage: Storage,
        settings: Settings,
        log: Path,
        path: Path,
        python_path: Path | None = None,
    ) -> None:
        given = settings.model_dump() | {
            "database_url": database_url,
            "redis_url": redis_url,
            "storage_url": storage.url,
        }
        environment = {f"TOKENMILL_{name.upper()}": str(value) for name, value in given.items()}
        if python_path is not None:
            environment["PYTHONPATH"] = str(python_path)
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cli.main", "worker", "--model", "demo", "--path", str(path)],
                stdout=out,
                stderr=out,
                cwd=ROOT,
                env=os.environ | environment,
            )

    def engine(self) -> psutil.Process:
        (engine,) = (
            child
            for child in psutil.Process(self.process.pid).children(recursive=True)
            if "engine.process.child" in child.cmdline()
        )
        return engine

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_SECONDS)


StartWorker = Callable[..., WorkerProcess]


@pytest.fixture
def start_worker(database_url: str, storage: Storage, settings: Settings, tmp_path: Path) -> Iterator[StartWorker]:
    started: list[WorkerProcess] = []

    def start(redis_url: str, *, path: Path = DEMO_MODEL, python_path: Path | None = None) -> WorkerProcess:
        worker = WorkerProcess(
            database_url=database_url,
            redis_url=redis_url,
            storage=storage,
            settings=settings,
            log=tmp_path / "worker.log",
            path=path,
            python_path=python_path,
        )
        started.append(worker)
        return worker

    yield start
    for worker in started:
        if worker.process.poll() is None:
            worker.process.kill()
        worker.process.wait()


class Watch:
    """Looks at the database until something is so."""

    def __init__(self, maker: sessionmaker[Session], log: Path) -> None:
        self._maker = maker
        self._log = log

    def value(self, sql: str) -> Any:
        with self._maker() as session:
            return session.execute(text(sql)).scalar()

    def until(self, sql: str) -> None:
        for _ in range(WAIT_SECONDS * 10):
            if self.value(sql):
                return
            threading.Event().wait(0.1)
        raise AssertionError(f"never: {sql}\n{self._log.read_text()[-3000:]}")


@pytest.fixture
def watch(maker: sessionmaker[Session], tmp_path: Path) -> Watch:
    return Watch(maker, tmp_path / "worker.log")


@pytest.fixture
def dispatching(maker: sessionmaker[Session], storage: Storage, settings: Settings, valkey_url: str) -> Iterator[None]:
    """A dispatcher that runs beside the test."""
    hints = HintSender(make_app(valkey_url))
    stop = threading.Event()
    thread = threading.Thread(target=Dispatcher(maker, storage, hints=hints, settings=settings).run, args=(stop,))
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.fixture
def lines(line: Callable[..., dict[str, Any]]) -> MakeLines:
    return lambda count, max_tokens: [line(number, max_tokens=max_tokens, ignore_eos=True) for number in range(count)]


@pytest.mark.usefixtures("dispatching")
def test_a_killed_engine_costs_no_line_and_a_stopped_worker_gives_its_chunks_back(
    start_worker: StartWorker, submit_valid: Callable[..., str], lines: MakeLines, watch: Watch, valkey_url: str
) -> None:
    worker = start_worker(valkey_url)
    watch.until("SELECT count(*) = 1 FROM worker")
    submit_valid(lines(32, 200))
    watch.until("SELECT count(*) >= 1 FROM result")
    worker.engine().kill()
    watch.until("SELECT count(*) = 32 AND bool_and(NOT is_error) FROM result")
    assert watch.value("SELECT sum(output_tokens) FROM ledger") == 32 * 200
    assert watch.value("SELECT max(fence) FROM chunk") == 1, "the worker kept its leases while the engine restarted"

    submit_valid(lines(64, 400))
    watch.until("SELECT count(*) >= 1 FROM chunk WHERE state = 'leased'")
    assert worker.stop() == 0, watch.value("SELECT 1") and worker.log.read_text()[-3000:]
    assert watch.value("SELECT count(*) FROM chunk WHERE state = 'leased'") == 0
    assert watch.value("SELECT count(*) FROM chunk WHERE state = 'ready'") >= 1
    assert watch.value("SELECT max(losses) FROM chunk") == 0
    assert watch.value("SELECT bool_and(stopped_at IS NOT NULL) FROM worker")


def test_a_worker_without_a_broker_helps_itself(
    start_worker: StartWorker, submit_valid: Callable[..., str], lines: MakeLines, watch: Watch
) -> None:
    submit_valid(lines(20, 5))
    worker = start_worker(NO_BROKER)
    watch.until("SELECT count(*) = 20 FROM result")
    watch.until("SELECT bool_and(state = 'done') FROM chunk")
    assert worker.stop() == 0, worker.log.read_text()[-3000:]


BREAK_THE_ENGINE = """
import os, sys
if "engine.process.child" in sys.orig_argv:
    from engine.core import Engine
    Engine.step = lambda self: os._exit(13)
"""


def test_a_worker_whose_engine_dies_on_its_first_step_costs_no_line(
    start_worker: StartWorker, submit_valid: Callable[..., str], lines: MakeLines, watch: Watch, tmp_path: Path
) -> None:
    submit_valid(lines(20, 5))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sitecustomize.py").write_text(BREAK_THE_ENGINE)
    broken = start_worker(NO_BROKER, python_path=tmp_path / "broken")
    assert broken.process.wait(WAIT_SECONDS) == 1, broken.log.read_text()[-3000:]
    assert "died 3 times" in broken.log.read_text().splitlines()[-1], "where the supervisor looks for the reason"
    assert watch.value("SELECT count(*) FROM result") == 0
    assert watch.value("SELECT max(fence) >= 1 AND max(losses) = 0 AND bool_and(state = 'ready') FROM chunk")
    healthy = start_worker(NO_BROKER)
    watch.until("SELECT count(*) = 20 AND bool_and(NOT is_error) FROM result")
    assert healthy.stop() == 0, healthy.log.read_text()[-3000:]


@pytest.mark.parametrize("files", [(), ("config.json",)])
def test_a_worker_that_cannot_read_its_model_ends_and_registers_nothing(
    start_worker: StartWorker, watch: Watch, tmp_path: Path, files: tuple[str, ...]
) -> None:
    folder = tmp_path / "nn"
    for name in files:
        folder.mkdir()
        shutil.copy(DEMO_MODEL / name, folder)
    worker = start_worker(NO_BROKER, path=folder)
    assert worker.process.wait(WAIT_SECONDS) == 2
    assert str(folder) in worker.log.read_text()
    assert watch.value("SELECT count(*) FROM model") == 0
