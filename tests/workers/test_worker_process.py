"""Tests of the GPU worker as its own process, on the demo model: killed engines, missing brokers, orderly ends."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs.settings import Settings
from jobs.storage import Storage
from tests.forked.commands import program_of
from tests.workers.role_processes import ROOT, WAIT_SECONDS, RoleProcess, Watch, dispatching, ended, stored_in

pytestmark = pytest.mark.long

DEMO_MODEL = ROOT / "examples" / "demo_model"
NO_BROKER = "redis://127.0.0.1:1/0"


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
    return stored_in(tmp_path / "objects")


MakeLines = Callable[[int, int], list[dict[str, Any]]]
StartWorker = Callable[..., RoleProcess]


@pytest.fixture
def start_worker(database_url: str, storage: Storage, settings: Settings, tmp_path: Path) -> Iterator[StartWorker]:
    started: list[RoleProcess] = []

    def start(redis_url: str, *, path: Path = DEMO_MODEL, python_path: Path | None = None) -> RoleProcess:
        urls = {"database_url": database_url, "redis_url": redis_url, "storage_url": storage.url}
        worker = RoleProcess(
            *("worker", "--model", "demo", "--path", str(path)),
            settings=settings.model_copy(update=urls),
            log=tmp_path / "worker.log",
            more={} if python_path is None else {"PYTHONPATH": str(python_path)},
        )
        started.append(worker)
        return worker

    with ended(started):
        yield start


def engine_of(worker: RoleProcess) -> psutil.Process:
    children = psutil.Process(program_of(worker.pid)).children(recursive=True)
    (engine,) = (child for child in children if "engine.process.child" in child.cmdline())
    return psutil.Process(program_of(engine.pid))


@pytest.fixture
def watch(maker: sessionmaker[Session], tmp_path: Path) -> Watch:
    return Watch(maker, tmp_path / "worker.log")


@pytest.fixture
def dispatcher(maker: sessionmaker[Session], storage: Storage, settings: Settings, valkey_url: str) -> Iterator[None]:
    with dispatching(maker, storage, settings, valkey_url):
        yield


@pytest.fixture
def lines(line: Callable[..., dict[str, Any]]) -> MakeLines:
    return lambda count, max_tokens: [line(number, max_tokens=max_tokens, ignore_eos=True) for number in range(count)]


@pytest.mark.usefixtures("dispatcher", "quick_processes")
def test_a_killed_engine_costs_no_line_and_a_stopped_worker_gives_its_chunks_back(
    start_worker: StartWorker, submit_valid: Callable[..., str], lines: MakeLines, watch: Watch, valkey_url: str
) -> None:
    worker = start_worker(valkey_url)
    watch.until("SELECT count(*) = 1 FROM worker")
    assert len(watch.value("SELECT tokenizer ->> 'sha256' FROM model")) == 64, "others count by its tokenizer"
    submit_valid(lines(32, 200))
    watch.until("SELECT count(*) >= 1 FROM result")
    engine_of(worker).kill()
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


@pytest.mark.usefixtures("quick_processes")
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
    from engine.loop.core import Engine
    Engine.step = lambda self: os._exit(13)
"""


def test_a_worker_whose_engine_dies_on_its_first_step_costs_no_line(
    start_worker: StartWorker, submit_valid: Callable[..., str], lines: MakeLines, watch: Watch, tmp_path: Path
) -> None:
    submit_valid(lines(20, 5))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sitecustomize.py").write_text(BREAK_THE_ENGINE)
    broken = start_worker(NO_BROKER, python_path=tmp_path / "broken")
    assert broken.wait(WAIT_SECONDS) == 1, broken.log.read_text()[-3000:]
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
    assert worker.wait(WAIT_SECONDS) == 2
    assert str(folder) in worker.log.read_text()
    assert watch.value("SELECT count(*) FROM model") == 0
