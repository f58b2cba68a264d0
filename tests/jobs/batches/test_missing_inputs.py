"""Tests of a store that has lost an input: its batch ends at the second check, and keeps and bills finished lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.audit.audit import audit
from jobs.batches import lifecycle, missing_inputs, sweeps
from jobs.batches.lost_leases import Reaped, reap_expired, reap_suspects
from jobs.chunks import claiming, deferring, leasing
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.recording import LineResult
from jobs.errors import FencedOutError, NotFoundError
from jobs.lines.output_lines import output_line
from jobs.states import BatchState
from jobs.storage import Storage
from jobs.tables import Batch, Budget, Chunk, File
from tests.jobs.batches.control import finalise

Run = Callable[..., Batch]
LEASE = timedelta(seconds=20)


def lose_input(session: Session, storage: Storage, batch: Batch) -> None:
    storage.delete(session.get_one(File, batch.input_file_id).object_key)


def truncate_input(session: Session, storage: Storage, batch: Batch, *, num_lines: int) -> None:
    key = session.get_one(File, batch.input_file_id).object_key
    lines = b"".join(storage.iter_chunks(key)).splitlines(keepends=True)
    storage.put(key, b"".join(lines[:num_lines]))


def claim(session: Session) -> ClaimedChunk:
    claim = claiming.claim_next(session, model="m", worker_id="w", lease=LEASE)
    session.commit()
    assert claim is not None
    return claim


def lose_lease(session: Session, chunk_id: int) -> None:
    claiming.claim_chunk(session, chunk_id, worker_id="w", lease=LEASE)
    over = "UPDATE chunk SET started_fence = fence, lease_until = clock_timestamp() WHERE state = 'leased'"
    session.execute(text(over))
    session.commit()


def answer_first(session: Session, claim: ClaimedChunk) -> leasing.FlushOutcome:
    line_no = claim.first_line
    line = output_line(claim.batch_id, line_no, f"a{line_no}", status_code=200, body={})
    result = LineResult(line_no=line_no, line=line, status_code=200, input_tokens=5, output_tokens=3)
    outcome = leasing.flush(session, claim, [result], flush_no=0, lease=LEASE)
    session.commit()
    return outcome


def custom_ids(session: Session, storage: Storage, file_id: str | None) -> list[str]:
    assert file_id is not None
    content = b"".join(storage.iter_chunks(session.get_one(File, file_id).object_key))
    return [json.loads(line)["custom_id"] for line in content.splitlines()]


def pass_time(session: Session, period: timedelta = missing_inputs.SECOND_LOOK) -> None:
    """Move everything that a batch waits for closer by `period`."""
    moved = "input_missed_at = input_missed_at - :period, deferred_until = deferred_until - :period"
    session.execute(text(f"UPDATE batch SET {moved}"), {"period": period})
    session.commit()


def chunk_states(session: Session) -> list[str]:
    return list(session.scalars(select(Chunk.state).order_by(Chunk.id)))


def resume(session: Session) -> int:
    num_resumed = deferring.resume(session)
    session.commit()
    return num_resumed


def miss_twice(session: Session) -> None:
    """Claim chunks and find their input missing, as two workers, two minutes apart."""
    missing_inputs.miss(session, claim(session))
    session.commit()
    pass_time(session)
    resume(session)
    missing_inputs.miss(session, claim(session))
    session.commit()


def codes(session: Session, batch: Batch) -> list[str]:
    session.refresh(batch)
    return [error["code"] for error in batch.errors or []]


@pytest.mark.parametrize("outcome", [BatchState.CANCELLED, BatchState.EXPIRED])
def test_a_batch_that_ends_without_its_input_has_the_lines_that_were_finished(
    session: Session, storage: Storage, run: Run, outcome: BatchState
) -> None:
    batch = run(4, reserved_tokens=1000)
    claimed = claim(session)
    answer_first(session, claimed)
    lose_input(session, storage, batch)
    if outcome is BatchState.CANCELLED:
        lifecycle.cancel_batch(session, batch.tenant_id, batch.id)
    else:
        session.execute(text("UPDATE batch SET expires_at = now()"))
        sweeps.expire_overdue(session)
    leasing.release(session, claimed)
    session.commit()
    assert finalise(session, storage, batch.id) is None, "the first look"
    session.commit()
    assert sweeps.due_batches(session) == []
    pass_time(session)
    resume(session)
    assert [due.batch_id for due in sweeps.due_batches(session)] == [batch.id]
    assert finalise(session, storage, batch.id) is outcome
    session.commit()
    assert codes(session, batch) == ["file_not_found"]
    assert (batch.state, batch.num_requests, batch.num_completed, batch.num_failed) == (outcome, 4, 1, 0)
    assert custom_ids(session, storage, batch.output_file_id) == ["a0"]
    assert batch.error_file_id is None
    assert session.execute(select(Budget.reserved_tokens, Budget.spent_tokens)).all() == [(0, 8)]


def test_the_first_miss_of_an_input_puts_its_batch_off_and_fails_nothing(
    session: Session, storage: Storage, run: Run
) -> None:
    batch = run(9)
    running, missing = claim(session), claim(session)
    missing_inputs.miss(session, missing)
    session.commit()
    session.refresh(batch)
    assert (batch.state, batch.errors) == (BatchState.IN_PROGRESS, None)
    assert chunk_states(session) == ["leased", "deferred", "deferred"]
    assert claiming.claim_next(session, model="m", worker_id="w", lease=LEASE) is None
    assert resume(session) == 0, "it is not due before the second look"
    assert answer_first(session, running).batch_wanted
    pass_time(session)
    assert resume(session) == 2
    assert chunk_states(session) == ["leased", "ready", "ready"]
    session.refresh(batch)
    assert batch.deferred_until is None
    assert claim(session).input_missed_at is not None


def test_an_input_that_is_there_at_the_second_look_is_not_missed_any_more(session: Session, run: Run) -> None:
    batch = run(3)
    missing_inputs.miss(session, claim(session))
    pass_time(session)
    resume(session)
    missing_inputs.find_again(session, batch.id)
    missing_inputs.miss(session, claim(session))
    session.commit()
    session.refresh(batch)
    assert batch.state == BatchState.IN_PROGRESS


def test_two_misses_less_than_two_minutes_apart_fail_nothing(session: Session, run: Run) -> None:
    batch = run(6)
    first, second = claim(session), claim(session)
    missing_inputs.miss(session, first)
    pass_time(session, missing_inputs.SECOND_LOOK - timedelta(seconds=5))
    missing_inputs.miss(session, second)
    session.commit()
    session.refresh(batch)
    assert batch.state == BatchState.IN_PROGRESS
    assert set(chunk_states(session)) == {"deferred"}


def test_a_store_that_is_away_puts_batches_off_however_often_and_fails_none(session: Session, run: Run) -> None:
    batch = run(3)
    for _ in range(3):
        missing_inputs.wait_for_store(session, claim(session))
        session.commit()
        assert chunk_states(session) == ["deferred"]
        pass_time(session, missing_inputs.AWAY)
        assert resume(session) == 1
    session.refresh(batch)
    assert (batch.state, batch.input_missed_at) == (BatchState.IN_PROGRESS, None)
    assert claim(session).lost_leases == 0


def test_deferred_chunks_come_back_a_few_at_a_time_and_all_of_them(
    session: Session, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferring, "_CHUNKS", 2)
    run(9)
    missing_inputs.wait_for_store(session, claim(session))
    pass_time(session, missing_inputs.AWAY)
    assert resume(session) == 2
    assert resume(session) == 0, "those that came back are ready still"
    claim(session), claim(session)
    assert resume(session) == 1
    assert chunk_states(session).count("deferred") == 0


@pytest.mark.parametrize("outcome", [BatchState.CANCELLED, BatchState.EXPIRED])
def test_a_batch_that_is_put_off_can_be_cancelled_and_expires(
    session: Session, storage: Storage, run: Run, outcome: BatchState
) -> None:
    batch = run(3)
    missing_inputs.wait_for_store(session, claim(session))
    session.commit()
    if outcome is BatchState.CANCELLED:
        lifecycle.cancel_batch(session, batch.tenant_id, batch.id)
    else:
        session.execute(text("UPDATE batch SET expires_at = now()"))
        sweeps.expire_overdue(session)
    session.commit()
    assert chunk_states(session) == ["withdrawn"]
    pass_time(session, missing_inputs.AWAY)
    resume(session)
    assert finalise(session, storage, batch.id) is outcome


def test_a_batch_whose_input_is_missed_twice_fails(session: Session, storage: Storage, run: Run) -> None:
    batch = run(9, reserved_tokens=1000)
    running, missing = claim(session), claim(session)
    lose_input(session, storage, batch)
    missing_inputs.miss(session, missing)
    session.commit()
    pass_time(session)
    resume(session)
    missing_inputs.miss(session, claim(session))
    session.commit()
    assert codes(session, batch) == ["file_not_found"]
    assert (batch.state, batch.outcome) == ("finalizing", "failed")
    assert list(session.scalars(select(Chunk.state).order_by(Chunk.id))) == ["leased", "withdrawn", "withdrawn"]
    assert not answer_first(session, running).batch_wanted
    leasing.release(session, running)
    session.commit()
    assert finalise(session, storage, batch.id) is BatchState.FAILED
    session.commit()
    assert codes(session, batch) == ["file_not_found"]
    assert custom_ids(session, storage, batch.output_file_id) == ["a0"]
    assert session.execute(select(Budget.reserved_tokens, Budget.spent_tokens)).all() == [(0, 8)]
    session.commit()
    assert audit(session, storage=storage) == []


def test_an_input_that_is_back_when_the_files_are_written_names_every_request(
    session: Session, storage: Storage, run: Run
) -> None:
    batch = run(2)
    miss_twice(session)
    assert finalise(session, storage, batch.id) is BatchState.FAILED
    session.refresh(batch)
    assert custom_ids(session, storage, batch.error_file_id) == ["a0", "a1"]
    assert batch.num_failed == 2


def test_a_worker_that_was_fenced_out_fails_nothing(session: Session, run: Run) -> None:
    batch = run(1)
    claimed = claim(session)
    leasing.release(session, claimed)
    session.commit()
    with pytest.raises(FencedOutError):
        missing_inputs.miss(session, claimed)
    session.rollback()
    session.refresh(batch)
    assert batch.state == BatchState.IN_PROGRESS


def test_a_lost_lease_without_its_input_does_not_wait_for_ever(
    session: Session, maker: sessionmaker[Session], storage: Storage, run: Run
) -> None:
    batch = run(6)
    first = session.scalars(select(Chunk.id).order_by(Chunk.id)).first()
    assert first is not None
    lose_input(session, storage, batch)
    for expected in ([Reaped.READY], [Reaped.DEFERRED], [Reaped.WITHDRAWN], []):
        pass_time(session)
        resume(session)
        lose_lease(session, first)
        reaped = reap_expired(session, lease=timedelta(0))
        session.commit()
        assert reaped + reap_suspects(maker, storage, lease=timedelta(0)) == expected
    assert codes(session, batch) == ["file_not_found"]
    assert finalise(session, storage, batch.id) is BatchState.FAILED


def test_a_chunk_behind_the_end_of_its_input_misses_it(session: Session, storage: Storage, run: Run) -> None:
    batch = run(6)
    whole, cut = claim(session), claim(session)
    truncate_input(session, storage, batch, num_lines=cut.first_line + 1)
    assert len(whole.split(whole.read(storage))) == whole.num_lines
    with pytest.raises(NotFoundError, match="ends before byte"):
        cut.read(storage)


def test_a_truncated_input_ends_its_batch_with_the_lines_that_are_left(
    session: Session, storage: Storage, run: Run
) -> None:
    batch = run(6, reserved_tokens=1000)
    running, cut = claim(session), claim(session)
    answer_first(session, running)
    truncate_input(session, storage, batch, num_lines=cut.first_line + 1)
    missing_inputs.miss(session, cut)
    leasing.release(session, running)
    session.commit()
    pass_time(session)
    resume(session)
    missing_inputs.miss(session, claim(session))
    session.commit()
    assert finalise(session, storage, batch.id) is BatchState.FAILED
    session.commit()
    assert codes(session, batch) == ["file_not_found"]
    assert custom_ids(session, storage, batch.output_file_id) == ["a0"]
    assert custom_ids(session, storage, batch.error_file_id) == [f"a{n}" for n in range(1, cut.first_line + 1)]
    session.commit()
    assert audit(session, storage=storage) == []


def test_a_lost_lease_on_a_truncated_input_does_not_wait_for_ever(
    session: Session, maker: sessionmaker[Session], storage: Storage, run: Run
) -> None:
    batch = run(6)
    first = session.scalars(select(Chunk.id).order_by(Chunk.id)).first()
    assert first is not None
    truncate_input(session, storage, batch, num_lines=1)
    for expected in ([Reaped.READY], [Reaped.DEFERRED], [Reaped.WITHDRAWN]):
        pass_time(session)
        resume(session)
        lose_lease(session, first)
        reaped = reap_expired(session, lease=timedelta(0))
        session.commit()
        assert reaped + reap_suspects(maker, storage, lease=timedelta(0)) == expected
    assert codes(session, batch) == ["file_not_found"]
