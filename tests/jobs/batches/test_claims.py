"""Tests of two control workers at a batch, a killed one, a slow one, and a cancel: nothing is lost or repeated."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.audit.audit import audit
from jobs.batches import deletion, lifecycle, planned, sweeps
from jobs.batches.finalisation import finalise_batch
from jobs.batches.results import read_finished_lines
from jobs.batches.validation import validate_batch
from jobs.chunks import claiming, leasing
from jobs.chunks.recording import LineResult
from jobs.database import connect, sessions
from jobs.lines.output_lines import output_line
from jobs.settings import Settings
from jobs.states import BatchState, InvalidLines
from jobs.storage import ObjectWriter, Storage
from jobs.tables import Batch, Chunk, File, Result, Tenant

LEASE = timedelta(seconds=20)
NUM_LINES = 12
Step = Callable[[], object]


class Killed(BaseException):
    """The process dies here: no `except` or `finally` of ours may repair anything in the database."""


class Midway(Storage):
    """Runs a step once, in the middle of reading an input or writing a file."""

    def __init__(self, inner: Storage, step: Step) -> None:
        self._inner = inner
        self._steps = [step]

    def _midway(self) -> None:
        if self._steps:
            self._steps.pop()()

    def size(self, key: str) -> int:
        return self._inner.size(key)

    def iter_range(self, key: str, start: int, end: int, **options: Any) -> Iterator[bytes]:
        return self.iter_chunks(key)

    def iter_chunks(self, key: str, start: int = 0, **options: Any) -> Iterator[bytes]:
        content = b"".join(self._inner.iter_chunks(key))
        yield content[: len(content) // 2]
        self._midway()
        yield content[len(content) // 2 :]

    @contextmanager
    def writer(self, key: str) -> Iterator[ObjectWriter]:
        with self._inner.writer(key) as writer:
            self._midway()
            yield writer


class ClaimScene:
    """One batch of ten valid lines and two invalid ones, which are skipped, and the control workers around it."""

    def __init__(self, maker: sessionmaker[Session], storage: Storage, settings: Settings, batch_id: str) -> None:
        self.maker, self.storage, self.settings, self.batch_id = maker, storage, settings, batch_id

    def work(self, step: Step | None = None, **changed: Any) -> BatchState | None:
        """Act as a control worker: validate the batch or write its files, with a step of others in the middle."""
        storage = self.storage if step is None else Midway(self.storage, step)
        settings = self.settings.model_copy(update=changed)
        do = validate_batch if self.state is BatchState.VALIDATING else finalise_batch
        return do(self.maker, storage, self.batch_id, settings=settings)

    @property
    def state(self) -> BatchState:
        with self.maker() as session:
            return BatchState(session.get_one(Batch, self.batch_id).state)

    def let_claim_end(self) -> None:
        with self.maker.begin() as session:
            ended = "UPDATE batch SET claimed_until = clock_timestamp() - interval '1 second' WHERE claimed_by <> ''"
            assert session.execute(text(ended)).rowcount == 1  # type: ignore[attr-defined] # of an UPDATE there is one

    def wait_until_claim_has_ended(self) -> None:
        is_over = text("SELECT claimed_until < clock_timestamp() FROM batch")
        for _ in range(6000):
            with self.maker() as session:
                if session.scalar(is_over):
                    return
            threading.Event().wait(0.01)
        raise AssertionError("it is renewed for ever")

    def outlast_claim(self) -> None:
        """Wait until the claim would have expired without renewal."""
        with self.maker() as session:
            until = session.scalar(text("SELECT claimed_until FROM batch"))
        while True:
            with self.maker() as session:
                if session.scalar(text("SELECT clock_timestamp() > :until"), {"until": until}):
                    return

    def cancel(self) -> None:
        with self.maker.begin() as session:
            batch = session.get_one(Batch, self.batch_id)
            lifecycle.cancel_batch(session, batch.tenant_id, batch.id)

    def kill(self) -> None:
        self.check()
        with self.maker() as session:
            assert session.scalars(select(Result.line_no)).all(), "some of the work is written"
            if self.state is BatchState.VALIDATING:
                assert "planned" in session.scalars(select(Chunk.state)).all()
        raise Killed

    def check(self) -> None:
        """Whatever happens, nobody sees incomplete data."""
        with self.maker() as session:
            assert audit(session) == []
            batch = session.get_one(Batch, self.batch_id)
            page = read_finished_lines(session, batch)
            assert page.content.count(b"\n") == batch.num_completed + batch.num_failed
        with self.maker() as session:
            if batch.state != BatchState.IN_PROGRESS:
                assert claiming.claim_next(session, model="m", worker_id="w", lease=LEASE) is None

    def run_to_finalising(self) -> None:
        """Answer every line that is to run."""
        with self.maker.begin() as session:
            while claim := claiming.claim_next(session, model="m", worker_id="w", lease=LEASE):
                done = leasing.lines_done(session, claim)
                lines = set(range(claim.first_line, claim.first_line + claim.num_lines)) - done
                results = [_answer(self.batch_id, line_no) for line_no in sorted(lines)]
                leasing.flush(session, claim, results, flush_no=0, lease=LEASE)
                leasing.complete(session, claim)
            assert sweeps.finish_ready(session) == [self.batch_id]

    def assert_started(self) -> None:
        with self.maker() as session:
            batch = session.get_one(Batch, self.batch_id)
            assert (batch.state, batch.num_requests, batch.num_failed) == (BatchState.IN_PROGRESS, NUM_LINES, 2)
            chunks = session.scalars(select(Chunk).order_by(Chunk.first_line)).all()
            assert {chunk.state for chunk in chunks} == {"ready"}
            covered = [n for chunk in chunks for n in range(chunk.first_line, chunk.first_line + chunk.num_lines)]
            assert covered == sorted(set(covered))
            failed = session.scalars(select(Result.line_no).order_by(Result.result_no)).all()
            assert failed == [1, 10]
            assert {*covered, *failed} == set(range(NUM_LINES))
        self.check()

    def assert_written(self, outcome: BatchState, *, num_completed: int, num_failed: int) -> None:
        with self.maker() as session:
            batch = session.get_one(Batch, self.batch_id)
            assert (batch.state, batch.num_completed, batch.num_failed) == (outcome, num_completed, num_failed)
            lines = [json.loads(line)["custom_id"] for line in self._lines(session, batch)]
            assert sorted(lines) == [f"a{number:02}" for number in range(NUM_LINES)]
            assert len(session.scalars(select(File.id).where(File.purpose == "batch_output")).all()) == (
                (num_completed > 0) + (num_failed > 0)
            )
        with self.maker() as session:
            assert audit(session, storage=self.storage) == []

    def _lines(self, session: Session, batch: Batch) -> list[bytes]:
        ids = [file_id for file_id in (batch.output_file_id, batch.error_file_id) if file_id is not None]
        keys = [session.get_one(File, file_id).object_key for file_id in ids]
        return [line for key in keys for line in b"".join(self.storage.iter_chunks(key)).splitlines()]


def _answer(batch_id: str, line_no: int) -> LineResult:
    line = output_line(batch_id, line_no, f"a{line_no:02}", status_code=200, body={})
    return LineResult(line_no=line_no, line=line, status_code=200, input_tokens=5, output_tokens=3)


@pytest.fixture
def stage(
    maker: sessionmaker[Session],
    storage: Storage,
    submit: Callable[..., Batch],
    request_line: Callable[..., str],
    *,
    monkeypatch: pytest.MonkeyPatch,
) -> ClaimScene:
    """Blocks are minimal, so that much is written before the middle."""
    monkeypatch.setattr(planned, "_CHUNKS_A_BLOCK", 1)
    monkeypatch.setattr(planned, "_ERRORS_A_BLOCK", 1)
    monkeypatch.setattr("jobs.batches.not_run._ERRORS_A_BLOCK", 2)
    lines = [request_line(f"a{number:02}", **({"url": "/x"} if number in (1, 10) else {})) for number in range(12)]
    batch = submit(lines, invalid_lines=InvalidLines.SKIP)
    return ClaimScene(maker, storage, Settings(chunk_lines=2), batch.id)


@pytest.fixture(params=["validated", "written out", "cancelled"])
def case(stage: ClaimScene, request: pytest.FixtureRequest) -> Case:
    """The batch before the work of each kind, and the expected result."""
    if request.param == "validated":
        return stage, BatchState.IN_PROGRESS, stage.assert_started
    if request.param == "cancelled":
        stage.cancel()
        outcome, counts = BatchState.CANCELLED, {"num_completed": 0, "num_failed": 12}
    else:
        stage.work()
        stage.run_to_finalising()
        outcome, counts = BatchState.COMPLETED, {"num_completed": 10, "num_failed": 2}
    return stage, outcome, lambda: stage.assert_written(outcome, **counts)


Case = tuple[ClaimScene, BatchState, Callable[[], None]]


def test_while_one_worker_is_at_a_batch_another_does_nothing(case: Case) -> None:
    stage, outcome, check = case
    others: list[BatchState | None] = []

    def come_too() -> None:
        others.append(stage.work())
        with stage.maker.begin() as session:
            assert sweeps.due_batches(session) == []
            assert sweeps.pick_for_validation(session, again_seconds=0) == []
            assert sweeps.pick_for_finalizing(session, again_seconds=0) == []

    with stage.maker() as session:
        assert [due.batch_id for due in sweeps.due_batches(session)] == [stage.batch_id]
    assert stage.work(come_too) is outcome
    assert others == [None]
    check()


def test_a_batch_whose_hint_is_being_noted_is_taken_up_all_the_same(stage: ClaimScene) -> None:
    """A control worker that finds the row locked would leave the batch alone for ten seconds, as if it were owned."""
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    with ThreadPoolExecutor(1) as executor:
        with stage.maker.begin() as session:
            assert sweeps.pick_for_validation(session, again_seconds=0) == [stage.batch_id]
            work = executor.submit(stage.work)
            while not work.done():
                with stage.maker() as other:
                    if other.scalar(waiting):
                        break
        assert work.result() is BatchState.IN_PROGRESS


def test_what_a_killed_worker_leaves_is_taken_over_when_its_claim_has_ended(case: Case) -> None:
    stage, outcome, check = case
    for _ in range(2):
        with pytest.raises(Killed):
            stage.work(stage.kill)
        assert stage.work() is None, "its claim lasts"
        stage.check()
        stage.let_claim_end()
    assert stage.work() is outcome
    check()


def test_a_worker_slower_than_its_claim_changes_nothing_once_another_has_done_the_work(case: Case) -> None:
    stage, outcome, check = case

    def overtake() -> None:
        stage.let_claim_end()
        assert stage.work() is outcome

    assert stage.work(overtake) is None
    check()


def test_a_worker_slower_than_its_claim_changes_nothing_while_another_is_at_it(case: Case) -> None:
    stage, outcome, check = case
    is_midway, may_go_on = threading.Event(), threading.Event()

    def wait() -> None:
        is_midway.set()
        assert may_go_on.wait(60)

    with ThreadPoolExecutor(1) as executor:

        def be_overtaken() -> None:
            stage.let_claim_end()
            executed.append(executor.submit(stage.work, wait))
            assert is_midway.wait(60)

        executed: list[Any] = []
        assert stage.work(be_overtaken) is None
        stage.check()
        may_go_on.set()
        assert executed[0].result() is outcome
    check()


@pytest.mark.parametrize("case", ["validated"], indirect=True)
def test_a_store_slower_than_the_claim_keeps_it(case: Case) -> None:
    stage, outcome, check = case

    def outlast() -> None:
        stage.outlast_claim()
        assert stage.work() is None

    assert stage.work(outlast, lease_seconds=1.0, heartbeat_seconds=0.05) is outcome
    check()


def test_a_claim_is_renewed_while_every_connection_of_the_work_is_in_use(
    case: Case, database_url: str, settings: Settings
) -> None:
    stage, outcome, check = case
    pool = connect(database_url, connections=1)
    brief = settings.model_copy(update={"lease_seconds": 0.5, "heartbeat_seconds": 0.02, "chunk_lines": 2})

    def use_them_all() -> None:
        with pool.connect():
            stage.outlast_claim()
            assert stage.work() is None

    do = validate_batch if stage.state is BatchState.VALIDATING else finalise_batch
    storage = Midway(stage.storage, use_them_all)
    done = do(sessions(pool), storage, stage.batch_id, settings=brief, hold_sessions=stage.maker)
    pool.dispose()
    assert done is outcome
    check()


@pytest.mark.parametrize("case", ["cancelled"], indirect=True)
def test_a_worker_that_moves_no_more_loses_its_claim(case: Case) -> None:
    stage, outcome, check = case

    def hang() -> None:
        stage.wait_until_claim_has_ended()
        assert stage.work() is outcome

    brief = {"lease_seconds": 0.3, "heartbeat_seconds": 0.02, "storage_timeout_seconds": 0.001}
    assert stage.work(hang, **brief) is None
    check()


def test_a_batch_cancelled_in_the_middle_of_its_validation_has_every_line_once(stage: ClaimScene) -> None:
    assert stage.work(stage.cancel) is None
    stage.check()
    assert stage.work() is BatchState.CANCELLED
    stage.assert_written(BatchState.CANCELLED, num_completed=0, num_failed=NUM_LINES)


def test_a_batch_that_expires_in_the_middle_of_its_validation_has_every_line_once(stage: ClaimScene) -> None:
    def expire() -> None:
        with stage.maker.begin() as session:
            session.execute(text("UPDATE batch SET expires_at = now()"))
            sweeps.expire_overdue(session)

    assert stage.work(expire) is None
    assert stage.work() is BatchState.EXPIRED
    stage.assert_written(BatchState.EXPIRED, num_completed=0, num_failed=NUM_LINES)


@pytest.mark.parametrize("case", ["validated", "cancelled"], indirect=True)
def test_a_tenant_deleted_in_the_middle_leaves_nothing(case: Case, tenant: Tenant) -> None:
    stage, outcome, _ = case

    def delete() -> None:
        with stage.maker.begin() as session:
            deletion.delete_tenant(session, session.get_one(Tenant, tenant.id), by="operator")
        deletion.delete_left(stage.maker)

    assert stage.work(delete) is (None if outcome is BatchState.IN_PROGRESS else outcome)
    stage.work()
    deletion.delete_left(stage.maker)
    with stage.maker() as session:
        assert session.get_one(Batch, stage.batch_id).deleted_at is not None
        assert session.scalars(select(File.id).where(File.deleted_at.is_(None))).all() == []
    with stage.maker() as session:
        assert audit(session) == []


def test_what_was_planned_of_a_batch_that_fails_is_dropped(stage: ClaimScene) -> None:
    assert stage.work(max_invalid_lines=1) is BatchState.FAILED
    with stage.maker() as session:
        assert session.scalars(select(Chunk)).all() == []
        assert session.scalars(select(Result)).all() == []
