"""Tests of held leases and their ends: completed, released or withdrawn, and charged for what was used."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.batches import lifecycle
from jobs.chunks import leasing
from jobs.chunks.leasing import ClaimedChunk, MissingResultsError
from jobs.states import BatchState, ChunkState, InvalidLines
from jobs.storage import Storage
from jobs.tables import Batch, Chunk
from tests.jobs.chunks.builders import (
    LEASE,
    Run,
    claim_first,
    end_lease,
    expected,
    flush,
    lose,
    reap,
    states,
    totals,
)


def test_a_heartbeat_extends_the_lease(session: Session, run: Run, storage: Storage) -> None:
    claim = claim_first(session, run(4))
    end_lease(session, claim)
    assert leasing.extend(session, claim, LEASE).batch_wanted
    assert reap(session, storage) == []


def test_a_chunk_is_complete_when_every_request_has_a_result(session: Session, run: Run) -> None:
    batch = run(4)
    claim = claim_first(session, batch)
    flush(session, claim, [0, 1, 2])
    with pytest.raises(MissingResultsError, match="3 results for 4 requests"):
        leasing.complete(session, claim)
    session.rollback()
    flush(session, claim, [3], flush_no=1)
    leasing.complete(session, claim)
    assert states(session, batch) == ["done"]


def test_skipped_lines_inside_a_chunk_count_as_done(
    session: Session, run: Run, request_line: Callable[..., str]
) -> None:
    batch = run([request_line("a0"), "bad", "", request_line("a3")], invalid_lines=InvalidLines.SKIP)
    claim = claim_first(session, batch)
    assert leasing.lines_done(session, claim) == {1}
    flush(session, claim, [0, 3])
    leasing.complete(session, claim)
    assert states(session, batch) == ["done"]


def test_a_chunk_given_back_is_no_loss_and_keeps_its_results(session: Session, run: Run) -> None:
    batch = run(4)
    claim = claim_first(session, batch)
    flush(session, claim, [1])
    leasing.release(session, claim)
    session.commit()
    again = claim_first(session, batch, "w2")
    assert (again.lost_leases, again.fence) == (0, 2)
    assert leasing.lines_done(session, again) == {1}


def test_workers_of_a_cancelled_batch_learn_it_and_keep_what_is_finished(
    session: Session, maker: sessionmaker[Session], run: Run
) -> None:
    batch = run(8)
    claim = claim_first(session, batch)
    with maker.begin() as other:
        lifecycle.cancel_batch(other, batch.tenant_id, batch.id)
    assert states(session, batch) == ["leased", "withdrawn"]
    assert not leasing.extend(session, claim, LEASE).batch_wanted
    outcome = flush(session, claim, [0, 1])
    assert (outcome.num_inserted, outcome.batch_wanted) == (2, False)
    leasing.release(session, claim)
    assert states(session, batch) == ["withdrawn", "withdrawn"]
    assert totals(session, batch) == expected(2, tokens=16)


def test_a_release_and_a_cancel_at_once_leave_no_ready_chunk(
    session: Session, maker: sessionmaker[Session], run: Run
) -> None:
    batch = run(4)
    claim = claim_first(session, batch)
    releasing = maker()
    leasing.release(releasing, claim)  # not committed: the cancel must wait for it

    def cancel() -> None:
        with maker.begin() as other:
            lifecycle.cancel_batch(other, batch.tenant_id, batch.id)

    thread = threading.Thread(target=cancel)
    thread.start()
    thread.join(timeout=0.2)
    assert thread.is_alive()
    releasing.commit()
    releasing.close()
    thread.join()
    assert states(session, batch) == ["withdrawn"]


def virtual_time(session: Session) -> float:
    return float(session.scalar(text("SELECT virtual_time FROM fair_share")) or 0)


@pytest.mark.parametrize("end", [leasing.complete, leasing.release])
def test_virtual_time_is_charged_by_estimate_and_corrected_by_use(
    session: Session, run: Run, end: Callable[[Session, ClaimedChunk], Any]
) -> None:
    batch = run(4)
    session.execute(text("UPDATE tenant SET weight = 2"))
    claim = claim_first(session, batch)
    assert virtual_time(session) == claim.estimated_tokens / 2
    flush(session, claim, [0, 1, 2, 3])
    end(session, claim)
    assert virtual_time(session) == 4 * 8 / 2


def test_a_lost_lease_is_charged_for_what_it_delivered(session: Session, storage: Storage, run: Run) -> None:
    claim = claim_first(session, run(4))
    flush(session, claim, [0])
    lose(session, storage, claim)
    assert virtual_time(session) == 8


def test_states_outside_the_table_are_not_reached(session: Session, run: Run) -> None:
    claim = claim_first(session, run(1))
    flush(session, claim, [0])
    leasing.complete(session, claim)
    assert leasing.withdraw_open(session, claim.batch_id) == 0
    assert session.scalars(select(Chunk.state)).one() == ChunkState.DONE
    assert session.scalars(select(Batch.state)).one() == BatchState.IN_PROGRESS
