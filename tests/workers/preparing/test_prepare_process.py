"""Tests of the prepare role as its own process: killed repeatedly, with its readers; every document is read once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs.audit.audit import audit
from jobs.batches.finalisation import finalise_batch
from jobs.settings import Settings
from jobs.states import BatchState
from jobs.storage import Storage
from lab.extraction.pages import make_pdf
from tests.database_roles import as_prepare
from tests.forked.commands import program_of
from tests.workers.preparing.builders import Library
from tests.workers.role_processes import WAIT_SECONDS, RoleProcess, Watch, dispatching, ended, hasty_settings, stored_in

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_processes")]


@pytest.fixture
def settings(database_url: str, valkey_url: str, storage: Storage) -> Settings:
    settings = hasty_settings(database_url, valkey_url, storage)
    return settings.model_copy(update={"database_prepare_url": as_prepare(database_url)})


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return stored_in(tmp_path / "objects")


@pytest.fixture
def watch(maker: sessionmaker[Session], tmp_path: Path) -> Watch:
    return Watch(maker, tmp_path / "prepare.log")


Start = Callable[[], RoleProcess]


@pytest.fixture
def start_prepare(settings: Settings, tmp_path: Path) -> Iterator[Start]:
    started: list[RoleProcess] = []

    def start() -> RoleProcess:
        started.append(RoleProcess("prepare", settings=settings, log=tmp_path / "prepare.log"))
        return started[-1]

    with ended(started):
        yield start


def readers_of(process: RoleProcess) -> list[psutil.Process]:
    """Return the processes that fork readers of files, and their current readers."""
    warm = [
        child
        for child in psutil.Process(program_of(process.pid)).children()
        if "features.documents.extraction.documents.process.child" in child.cmdline()
    ]
    return warm + [reader for each in warm for reader in each.children()]


def documents(count: int) -> dict[str, bytes]:
    """Return `count` documents, each twentieth of them broken."""
    pdf = make_pdf(3, seed=2)
    return {f"{n}.pdf": pdf[:-200] if n % 20 == 7 else pdf + b"\n%% %d\n" % n for n in range(count)}


def test_documents_are_read_once_each_however_often_worker_and_readers_are_killed(
    library: Library, start_prepare: Start, watch: Watch, settings: Settings
) -> None:
    batch_id = library.read(documents(200))
    with dispatching(library.sessions, library.storage, settings, settings.redis_url):
        for num_results in (10, 80, 150):
            worker = start_prepare()
            watch.until(f"SELECT count(*) >= {num_results - 8} FROM result")
            first, *_, last_reader = readers_of(worker)
            first.kill()
            if last_reader.is_running():
                last_reader.kill()
            watch.until(f"SELECT count(*) >= {num_results} FROM result")
            worker.kill()
            worker.wait()
        last = start_prepare()
        watch.until("SELECT count(*) = 200 FROM result")
        watch.until("SELECT state = 'finalizing' FROM batch")
        assert last.stop() == 0

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
    assert worker.stop() == 0
    assert watch.value("SELECT count(*) FROM chunk WHERE state = 'leased'") == 0
    assert watch.value("SELECT max(losses) FROM chunk") == 0
    assert watch.value("SELECT bool_and(stopped_at IS NOT NULL) FROM worker")
    assert readers
    assert psutil.wait_procs(readers, timeout=WAIT_SECONDS)[1] == []
