"""Tests of a worker of several models as its own process: it switches, leaves one out, and may be killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs.storage import Storage
from tests.forked.commands import program_of
from tests.workers.role_processes import ROOT, RoleProcess, Watch, dispatching, ended, hasty_settings, stored_in

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_processes")]

DEMO_MODEL = ROOT / "examples" / "demo_model"
SERVES = "SELECT count(*) = 1 FROM worker WHERE model = '{}' AND max_chunks > 0 AND stopped_at IS NULL"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return stored_in(tmp_path / "objects")


@pytest.fixture
def watch(maker: sessionmaker[Session], tmp_path: Path) -> Watch:
    return Watch(maker, tmp_path / "worker.log")


StartWorker = Callable[[], RoleProcess]


@pytest.fixture
def start_worker(
    maker: sessionmaker[Session], database_url: str, valkey_url: str, storage: Storage, tmp_path: Path
) -> Iterator[StartWorker]:
    """Start a worker of the registered model `demo`, of `broken`, whose folder does not exist, and of `other`."""
    settings = hasty_settings(database_url, valkey_url, storage, worker_chunks=2)
    models = f"demo,broken={tmp_path / 'none'},other={DEMO_MODEL}"
    started: list[RoleProcess] = []

    def start() -> RoleProcess:
        worker = RoleProcess("worker", "--models", models, settings=settings, log=tmp_path / "worker.log")
        started.append(worker)
        return worker

    with dispatching(maker, storage, settings, valkey_url), ended(started):
        yield start


def descendants_of(worker: RoleProcess) -> list[psutil.Process]:
    processes: list[psutil.Process] = psutil.Process(program_of(worker.pid)).children(recursive=True)
    return processes + [psutil.Process(program_of(process.pid)) for process in processes if process.is_running()]


def test_a_worker_switches_between_models_leaves_one_out_and_loses_nothing_when_it_is_killed_meanwhile(
    start_worker: StartWorker, submit_valid: Callable[..., str], line: Callable[..., dict[str, Any]], watch: Watch
) -> None:
    worker = start_worker()
    watch.until(SERVES.format("other"))  # nobody has loaded it
    assert "none" in watch.value("SELECT left_out ->> 'broken' FROM worker WHERE stopped_at IS NULL")
    submit_valid([line(number, max_tokens=8, ignore_eos=True) for number in range(16)])
    submit_valid([line(number, model="other", max_tokens=400, ignore_eos=True) for number in range(16)])
    watch.until("SELECT count(*) >= 1 FROM result")
    watch.until("SELECT count(*) = 1 FROM worker WHERE model = 'demo' AND stopped_at IS NULL AND max_chunks = 0")
    gone = descendants_of(worker)
    psutil.Process(program_of(worker.pid)).kill()
    worker.wait(60)
    assert psutil.wait_procs(gone, timeout=60)[1] == [], "its workers and engines die with it"
    num_dead = watch.value("SELECT count(*) FROM worker WHERE stopped_at IS NULL")

    again = start_worker()
    watch.until("SELECT count(*) = 32 AND bool_and(NOT is_error) FROM result")
    assert watch.value("SELECT sum(output_tokens) FROM ledger") == 16 * 8 + 16 * 400
    assert watch.value("SELECT count(DISTINCT model) FROM ledger") == 2
    assert again.stop() == 0, again.log.read_text()[-3000:]
    assert watch.value("SELECT count(*) FROM chunk WHERE state = 'leased'") == 0
    assert watch.value("SELECT count(*) FROM worker WHERE stopped_at IS NULL") == num_dead, "it has signed off"
