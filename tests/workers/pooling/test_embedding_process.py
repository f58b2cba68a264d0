"""Tests of an encoder's worker as its own process: killed repeatedly, every line is answered and billed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session, sessionmaker

from engine.pooling.embedder import Embedder
from features.documents.extraction.passages.token_count import TokenCount
from jobs.audit.audit import audit
from jobs.batches.finalisation import finalise_batch
from jobs.settings import Settings
from jobs.states import BatchState
from jobs.storage import Storage, tokenizers
from tests.workers.pooling.builders import MODEL, Desk, line
from tests.workers.role_processes import RoleProcess, Watch, dispatching, ended, hasty_settings, stored_in

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_processes")]

NUM_LINES = 120
TEXTS = ["the sea is cold", "ships sail", "to no port today and wide"] * 8


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
def start_worker(settings: Settings, encoder_folder: Path, tmp_path: Path) -> Iterator[Start]:
    started: list[RoleProcess] = []

    def start() -> RoleProcess:
        arguments = ("worker", "--model", MODEL, "--path", str(encoder_folder))
        started.append(RoleProcess(*arguments, settings=settings, log=tmp_path / "worker.log"))
        return started[-1]

    with ended(started):
        yield start


def test_every_line_is_answered_and_billed_once_however_often_the_worker_is_killed(
    desk: Desk, start_worker: Start, watch: Watch, settings: Settings, embedder: Embedder
) -> None:
    batch_id = desk.submit([line(number, TEXTS) for number in range(NUM_LINES)])
    with dispatching(desk.sessions, desk.storage, settings, settings.redis_url):
        for num_results in (1, 60):
            worker = start_worker()
            watch.until(f"SELECT count(*) >= {num_results} FROM result")
            worker.kill()
            worker.wait()
        last = start_worker()
        watch.until(f"SELECT count(*) = {NUM_LINES} FROM result")
        watch.until("SELECT state = 'finalizing' FROM batch")
        assert last.stop() == 0

    assert finalise_batch(desk.sessions, desk.storage, batch_id, settings=settings) is BatchState.COMPLETED
    with desk.sessions() as session:
        assert audit(session, storage=desk.storage) == []
    kept = tokenizers.find(desk.storage, desk.rows("SELECT tokenizer ->> 'sha256' FROM model")[0][0])
    specials = desk.rows("SELECT (tokenizer ->> 'num_special_tokens')::integer FROM model")[0][0]
    counted = tuple(TokenCount(kept)(each) + specials for each in TEXTS)
    assert counted == embedder.embed(TEXTS).num_tokens
    tokens = NUM_LINES * sum(counted)
    billed = "(SELECT sum(num_results) FROM ledger), (SELECT sum(input_tokens) FROM ledger)"
    told = f"SELECT num_completed, num_failed, input_tokens, output_tokens, cost_picos, {billed} FROM batch"
    assert desk.rows(told) == [(NUM_LINES, 0, tokens, 0, 3 * tokens, NUM_LINES, tokens)]
    vectors = [len(body["data"]) for body in desk.bodies(batch_id).values()]
    assert vectors == [len(TEXTS)] * NUM_LINES
