"""Tests that result files agree with the counts, after any outcome and crash."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import budgets
from jobs.batches import finalisation, lifecycle, not_run, sweeps
from jobs.batches.not_run import CountsDisagreeError
from jobs.chunks import leasing
from jobs.errors import ServiceError
from jobs.settings import MIB
from jobs.states import BatchState, InvalidLines
from jobs.storage import Storage
from jobs.tables import Batch, Checkpoint, Chunk, File, Result, Tenant
from tests.jobs.batches import control
from tests.jobs.batches.answered_lines import LEASE, answer, claim_all, flush, run_to_end

Run = Callable[..., Batch]
Finalise = Callable[[Batch], BatchState | None]


@pytest.fixture
def finalise(session: Session, storage: Storage) -> Finalise:
    def finalise(batch: Batch) -> BatchState | None:
        outcome = control.finalise(session, storage, batch.id)
        session.commit()
        session.refresh(batch)
        return outcome

    return finalise


def read(session: Session, storage: Storage, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    file = session.get_one(File, file_id)
    content = b"".join(storage.iter_chunks(file.object_key))
    assert len(content) == file.size_bytes
    assert file.purpose == "batch_output"
    return [json.loads(line) for line in content.splitlines()]


def custom_ids(lines: list[dict[str, Any]]) -> list[str]:
    return [line["custom_id"] for line in lines]


def written_lines(session: Session, storage: Storage, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Finalize a batch, and return how many lines were written to its files at a time."""
    sizes = []

    class Counting(Storage):
        def __init__(self) -> None: ...

        @contextmanager
        def writer(self, key: str) -> Iterator[Any]:
            with storage.writer(key) as inner:
                write = inner.write

                def counted(part: bytes) -> None:
                    if not key.endswith(".lines"):
                        sizes.append(part.count(b"\n"))
                    write(part)

                monkeypatch.setattr(inner, "write", counted)
                yield inner

    assert control.finalise(session, Counting(), batch.id) is BatchState.COMPLETED
    session.refresh(batch)
    return sizes


def test_a_finished_batch_has_its_lines_in_input_order(
    session: Session, storage: Storage, run: Run, finalise: Finalise
) -> None:
    batch = run(10)
    run_to_end(session, batch)
    assert finalise(batch) is BatchState.COMPLETED
    assert custom_ids(read(session, storage, batch.output_file_id)) == [f"a{index}" for index in range(10)]
    assert batch.error_file_id is None
    assert batch.completed_at is not None


def test_failed_lines_are_in_the_error_file_and_counts_agree(
    session: Session, storage: Storage, run: Run, finalise: Finalise
) -> None:
    batch = run(10)
    run_to_end(session, batch, failing=frozenset({2, 7}))
    assert finalise(batch) is BatchState.COMPLETED
    assert custom_ids(read(session, storage, batch.error_file_id)) == ["a2", "a7"]
    assert len(read(session, storage, batch.output_file_id)) == batch.num_completed == 8
    assert batch.num_failed == 2


def test_skipped_lines_are_in_the_error_file_in_their_place(
    session: Session, storage: Storage, run: Run, finalise: Finalise, request_line: Callable[..., str]
) -> None:
    batch = run(["bad", request_line("a1"), "", request_line("a3"), "bad"], invalid_lines=InvalidLines.SKIP)
    run_to_end(session, batch, failing=frozenset({3}), blank=frozenset({2}))
    finalise(batch)
    assert custom_ids(read(session, storage, batch.output_file_id)) == ["a1"]
    errors = read(session, storage, batch.error_file_id)
    assert [line["error"]["code"] for line in errors] == ["invalid_json_line", "engine_failure", "invalid_json_line"]
    assert (batch.num_requests, batch.num_completed, batch.num_failed) == (4, 1, 3)


def test_a_page_of_long_lines_ends_before_its_rows_do(
    session: Session, storage: Storage, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finalisation, "_BYTES_A_PAGE", 1)
    batch = run(3)
    run_to_end(session, batch)
    assert written_lines(session, storage, batch, monkeypatch) == [1, 1, 1]
    assert custom_ids(read(session, storage, batch.output_file_id)) == ["a0", "a1", "a2"]


def test_files_take_no_memory_for_lines_behind_the_page_that_is_written(
    session: Session, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgetting(Storage):
        def __init__(self) -> None: ...

        @contextmanager
        def writer(self, key: str) -> Iterator[Any]:
            yield SimpleNamespace(write=lambda part: None, size_bytes=0)

    monkeypatch.setattr(finalisation, "_BYTES_A_PAGE", 2 * MIB)
    batch = run(24)
    run_to_end(session, batch, padding="x" * MIB)
    session.expire_all()
    tracemalloc.start()
    try:
        assert control.finalise(session, Forgetting(), batch.id) is BatchState.COMPLETED
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 12 * MIB, "two lines a few times, and not the others"


def test_files_are_written_block_by_block(
    session: Session, storage: Storage, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.batches.finalisation._ROWS_A_PAGE", 10)
    batch = run(64)
    run_to_end(session, batch)
    assert written_lines(session, storage, batch, monkeypatch) == [10] * 6 + [4]


def test_a_batch_of_bad_lines_only_has_an_error_file(
    session: Session, storage: Storage, run: Run, finalise: Finalise
) -> None:
    batch = run(["bad", "worse"], invalid_lines=InvalidLines.SKIP)
    assert finalise(batch) is BatchState.COMPLETED
    assert batch.output_file_id is None
    assert len(read(session, storage, batch.error_file_id)) == 2


def test_an_expired_batch_keeps_what_is_finished_and_lists_the_rest(
    session: Session, storage: Storage, run: Run, finalise: Finalise, tenant: Tenant
) -> None:
    batch = run(10, reserved_tokens=1000)
    claim = claim_all(session)[1]
    flush(session, claim, [answer(batch.id, 5)])
    session.execute(text("UPDATE batch SET expires_at = now() - interval '1 second'"))
    sweeps.expire_overdue(session)
    assert finalise(batch) is None  # its workers still hold chunks
    session.execute(text("UPDATE chunk SET state = 'withdrawn' WHERE state = 'leased'"))
    assert finalise(batch) is BatchState.EXPIRED
    assert custom_ids(read(session, storage, batch.output_file_id)) == ["a5"]
    errors = read(session, storage, batch.error_file_id)
    assert custom_ids(errors) == [f"a{index}" for index in range(10) if index != 5]
    assert {line["error"]["code"] for line in errors} == {"batch_expired"}
    assert "24h" in errors[0]["error"]["message"]
    assert (batch.num_completed, batch.num_failed) == (1, 9)
    quota = budgets.quota(session, tenant.id)
    assert (quota.reserved, quota.spent) == (0, 8)


def test_a_cancelled_batch_lists_what_was_not_run(
    session: Session, storage: Storage, run: Run, finalise: Finalise, request_line: Callable[..., str]
) -> None:
    batch = run([request_line("a0"), "bad", "", request_line("a3")], invalid_lines=InvalidLines.SKIP)
    lifecycle.cancel_batch(session, batch.tenant_id, batch.id)
    assert finalise(batch) is BatchState.CANCELLED
    errors = read(session, storage, batch.error_file_id)
    assert [(line["custom_id"], line["error"]["code"]) for line in errors] == [
        ("a0", "batch_cancelled"),
        (None, "invalid_json_line"),
        ("a3", "batch_cancelled"),
    ]
    assert (batch.num_completed, batch.num_failed, batch.num_requests) == (0, 3, 3)
    assert session.scalar(select(func.max(Result.result_no))) == 3


def test_files_expire_when_the_batch_asked_for_it(session: Session, run: Run, finalise: Finalise) -> None:
    batch = run(1, output_expires_after_seconds=3600)
    run_to_end(session, batch)
    finalise(batch)
    file = session.get_one(File, batch.output_file_id)
    assert file.expires_at is not None
    assert file.expires_at - file.created_at == timedelta(hours=1)


def test_repeated_hints_make_one_set_of_files(session: Session, run: Run, finalise: Finalise) -> None:
    batch = run(5)
    assert finalise(batch) is None  # still in progress
    run_to_end(session, batch, failing=frozenset({1}))
    assert [finalise(batch) for _ in range(3)] == [BatchState.COMPLETED, None, None]
    assert session.scalar(select(func.count()).select_from(File).where(File.purpose == "batch_output")) == 2


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_crash_in_the_middle_names_no_file_and_can_be_repeated(
    session: Session, storage: Storage, run: Run, finalise: Finalise, is_cancelled: bool
) -> None:
    class Breaking(Storage):
        """Fails when the second file is opened: the first one may be written already."""

        def __init__(self) -> None:
            self._num_opened = 0

        def iter_chunks(self, key: str, *args: Any, **options: Any) -> Any:
            return storage.iter_chunks(key, *args, **options)

        def writer(self, key: str) -> Any:
            self._num_opened += 1
            if self._num_opened == 2:
                raise ServiceError("the store is full")
            return storage.writer(key)

    batch = run(8)
    if is_cancelled:
        flush(session, claim_all(session)[0], [answer(batch.id, 0)])
        session.execute(text("UPDATE chunk SET state = 'withdrawn'"))
        lifecycle.cancel_batch(session, batch.tenant_id, batch.id)
    else:
        run_to_end(session, batch, failing=frozenset({3}))
    session.commit()
    with pytest.raises(ServiceError):
        control.finalise(session, Breaking(), batch.id)
    session.rollback()
    assert batch.output_file_id is None
    assert finalise(batch) is (BatchState.CANCELLED if is_cancelled else BatchState.COMPLETED)
    assert session.scalar(select(func.count()).select_from(File).where(File.purpose == "batch_output")) == 2
    assert batch.num_completed + batch.num_failed == 8


def test_counts_that_disagree_with_the_results_stop_the_batch(session: Session, run: Run, finalise: Finalise) -> None:
    batch = run(4)
    run_to_end(session, batch)
    session.execute(text("DELETE FROM result WHERE line_no = 2"))
    with pytest.raises(CountsDisagreeError, match="counts 4 completed"):
        finalise(batch)


def test_nothing_is_left_open_behind_a_finished_batch(session: Session, run: Run, finalise: Finalise) -> None:
    batch = run(6)
    session.add(Checkpoint(batch_id=batch.id, line_no=3, token_ids=[1, 2], model_fingerprint="m"))
    run_to_end(session, batch)
    finalise(batch)
    assert set(session.scalars(select(Chunk.state))) == {"done"}
    assert session.scalars(select(Checkpoint)).all() == []


@pytest.mark.parametrize("outcome", [BatchState.CANCELLED, BatchState.EXPIRED])
def test_a_batch_that_ends_before_it_is_validated_has_every_request_in_its_error_file(
    session: Session,
    storage: Storage,
    submit: Callable[..., Batch],
    *,
    request_line: Callable[..., str],
    finalise: Finalise,
    outcome: BatchState,
) -> None:
    batch = submit([request_line("a"), "", request_line("b"), "no request"])
    if outcome is BatchState.CANCELLED:
        lifecycle.cancel_batch(session, batch.tenant_id, batch.id)
    else:
        batch.expires_at = datetime.now(UTC) - timedelta(seconds=1)
        session.flush()
        sweeps.expire_overdue(session)
    assert finalise(batch) is outcome
    assert (batch.num_requests, batch.num_completed, batch.num_failed, batch.errors) == (3, 0, 3, None)
    key = session.get_one(File, batch.error_file_id).object_key
    lines = [json.loads(line) for line in b"".join(storage.iter_chunks(key)).splitlines()]
    assert [line["custom_id"] for line in lines] == ["a", "b", None]
    assert {line["error"]["code"] for line in lines} == {f"batch_{outcome}"}


def test_lines_that_are_no_requests_do_not_become_error_lines_without_end(
    session: Session,
    submit: Callable[..., Batch],
    request_line: Callable[..., str],
    *,
    finalise: Finalise,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(not_run, "MAX_NAMELESS", 2)
    batch = submit([*"1" * 5, request_line("a")])
    lifecycle.cancel_batch(session, batch.tenant_id, batch.id)
    finalise(batch)
    assert (batch.num_requests, batch.num_failed) == (3, 3)
    assert batch.errors is not None
    assert "5 lines have no custom_id" in batch.errors[0]["message"]


def test_an_input_lost_before_validation_is_named(
    session: Session,
    storage: Storage,
    submit: Callable[..., Batch],
    *,
    request_line: Callable[..., str],
    finalise: Finalise,
) -> None:
    batch = submit([request_line("a")])
    storage.delete(session.get_one(File, batch.input_file_id).object_key)
    lifecycle.cancel_batch(session, batch.tenant_id, batch.id)
    assert finalise(batch) is None, "the first look"
    session.execute(text("UPDATE batch SET input_missed_at = input_missed_at - interval '2 minutes'"))
    assert finalise(batch) is BatchState.CANCELLED
    assert batch.errors is not None
    assert batch.errors[0]["code"] == "file_not_found"


def test_results_that_the_last_chunk_brings_while_it_is_looked_at_are_counted(
    session: Session, maker: sessionmaker[Session], run: Run, *, finalise: Finalise, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = run(4)
    (claim,) = claim_all(session)
    lifecycle.cancel_batch(session, batch.tenant_id, batch.id)
    session.commit()
    plain = finalisation._has_open_chunk

    def end_the_chunk_first(session: Session, batch_id: str) -> bool:
        with maker.begin() as own:
            leasing.flush(own, claim, [answer(batch.id, 0)], flush_no=0, lease=LEASE)
            leasing.release(own, claim)
        return plain(session, batch_id)

    monkeypatch.setattr(finalisation, "_has_open_chunk", end_the_chunk_first)
    assert finalise(batch) is BatchState.CANCELLED
    assert (batch.num_completed, batch.num_failed) == (1, 3)
