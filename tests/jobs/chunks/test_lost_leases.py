"""Tests of lost leases: the chunk continues, the poison line is found, and only own failures count as losses."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session, sessionmaker

from jobs.batches import lifecycle
from jobs.batches.lost_leases import Reaped, reap_suspects, return_leases
from jobs.chunks import claiming, leasing
from jobs.errors import FencedOutError, ServiceError
from jobs.storage import Storage
from jobs.tables import Chunk, Result
from tests.jobs.chunks.builders import (
    ENDED,
    LEASE,
    Run,
    chunk_ids,
    claim_first,
    claim_one,
    end_lease,
    expected,
    flush,
    lose,
    reap,
    states,
    totals,
)


def test_an_expired_lease_returns_the_chunk_to_the_queue(session: Session, storage: Storage, run: Run) -> None:
    batch = run(4)
    claim = claim_first(session, batch)
    assert lose(session, storage, claim) == [Reaped.READY]
    assert states(session, batch) == ["ready"]
    assert claim_first(session, batch).lost_leases == 1


def test_after_two_losses_a_chunk_is_bisected_over_its_unfinished_lines(
    session: Session, storage: Storage, run: Run
) -> None:
    batch = run(4)
    lose(session, storage, claim_first(session, batch))
    claim = claim_first(session, batch)
    flush(session, claim, [0])
    assert lose(session, storage, claim) == [Reaped.SPLIT]
    parent, *children = session.scalars(select(Chunk).order_by(Chunk.id)).all()
    assert parent.state == "split"
    spans = [(child.first_line, child.num_lines, child.num_requests, child.losses) for child in children]
    assert spans == [(1, 1, 1, 0), (2, 2, 2, 2)]
    last = claim_one(session, children[1].id)
    lines = last.split(storage.read_range(last.object_key, last.byte_start, last.byte_end))
    assert [json.loads(line.content or b"")["custom_id"] for line in lines] == ["a2", "a3"]


def test_the_parts_of_a_chunk_know_which_of_its_lines_are_copies(session: Session, storage: Storage, run: Run) -> None:
    batch = run(4)
    session.execute(update(Chunk).values(copies=[2, 0, 3, 1]))
    lose(session, storage, claim_first(session, batch))
    assert lose(session, storage, claim_first(session, batch)) == [Reaped.SPLIT]
    _, *children = session.scalars(select(Chunk).order_by(Chunk.id)).all()
    assert [claim_one(session, child.id).copies for child in children] == [[2, 0, 3, 1]] * 2


def test_a_line_that_kills_every_engine_is_failed_and_the_rest_completes(
    session: Session, storage: Storage, run: Run
) -> None:
    batch, poison, num_deaths = run(4), 2, 0
    while claim := claiming.claim_next(session, model="m", worker_id=f"w{num_deaths}", lease=LEASE):
        session.commit()
        span = range(claim.first_line, claim.first_line + claim.num_lines)
        todo = [line for line in span if line not in leasing.lines_done(session, claim)]
        if poison in todo:
            num_deaths += 1
            lose(session, storage, claim)
            continue
        flush(session, claim, todo)
        leasing.complete(session, claim)
        session.commit()
    assert num_deaths == 6  # twice whole, once as a half, three times alone
    assert totals(session, batch) == expected(4, tokens=3 * 8)
    session.refresh(batch)
    assert (batch.num_completed, batch.num_failed) == (3, 1)
    line = json.loads(session.scalars(select(Result.line).where(Result.is_error)).one())
    assert (line["custom_id"], line["error"]["code"], line["response"]) == ("a2", "engine_failure", None)
    assert not {"ready", "leased"} & set(states(session, batch))


def test_a_single_line_is_failed_at_its_third_loss(session: Session, storage: Storage, run: Run) -> None:
    batch = run(1)
    outcomes = [lose(session, storage, claim_first(session, batch)) for _ in range(3)]
    assert outcomes == [[Reaped.READY], [Reaped.READY], [Reaped.FAILED]]
    assert states(session, batch) == ["done"]


def test_a_chunk_lost_after_its_last_result_is_done(session: Session, storage: Storage, run: Run) -> None:
    batch = run(2)
    lose(session, storage, claim_first(session, batch))
    claim = claim_first(session, batch)
    flush(session, claim, [0, 1])
    assert lose(session, storage, claim) == [Reaped.DONE]


def test_a_lost_chunk_of_a_cancelled_batch_is_withdrawn(session: Session, storage: Storage, run: Run) -> None:
    batch = run(4)
    claim = claim_first(session, batch)
    lifecycle.cancel_batch(session, batch.tenant_id, batch.id)
    session.commit()
    assert lose(session, storage, claim) == [Reaped.WITHDRAWN]


def test_while_the_input_cannot_be_read_a_lost_chunk_waits_and_others_do_not(
    session: Session, storage: Storage, run: Run
) -> None:
    class Away(Storage):
        def __init__(self) -> None: ...

        def read_range(self, key: str, start: int, end: int) -> bytes:
            raise ServiceError("the store is away")

    batch = run(8)
    first, second = chunk_ids(session, batch)
    lose(session, storage, claim_one(session, first))
    for chunk_id in (first, second):
        claim = claim_one(session, chunk_id)
        leasing.start(session, claim)
        end_lease(session, claim)
    assert reap(session, Away()) == [Reaped.READY]
    session.commit()
    assert reap(session, storage) == [Reaped.SPLIT]


@pytest.mark.parametrize("change", ["extended", "given back", "taken by another"])
def test_a_suspect_whose_lease_has_changed_while_its_lines_were_read_is_left_alone(
    session: Session, maker: sessionmaker[Session], storage: Storage, run: Run, change: str
) -> None:
    batch = run(4)
    lose(session, storage, claim_first(session, batch))
    claim = claim_first(session, batch)
    leasing.start(session, claim)
    end_lease(session, claim)

    class Slow(Storage):
        def __init__(self) -> None: ...

        def read_range(self, key: str, start: int, end: int) -> bytes:
            if change == "extended":
                leasing.extend(session, claim, LEASE)
            else:
                leasing.release(session, claim)
            session.commit()
            if change == "taken by another":
                claim_first(session, batch, "w2")
            return storage.read_range(key, start, end)

    assert reap_suspects(maker, Slow(), lease=ENDED) == []
    assert states(session, batch) == ["ready" if change == "given back" else "leased"]


def test_a_lease_that_could_not_be_extended_while_postgres_was_away_is_no_loss(
    session: Session, storage: Storage, run: Run
) -> None:
    batch = run(4)
    since_before_the_server_started = timedelta(days=365)
    for _ in range(5):
        end_lease(session, claim_first(session, batch))
        assert reap(session, storage, lease=since_before_the_server_started) == [Reaped.READY]
        session.commit()
    assert claim_first(session, batch).lost_leases == 0
    session.execute(text("UPDATE chunk SET state = 'ready', losses = 2"))
    end_lease(session, claim_first(session, batch))
    assert reap(session, storage, lease=since_before_the_server_started) == [Reaped.READY]
    assert claim_first(session, batch).lost_leases == 2, "nor does it split a suspect or forgive it"


def test_a_lease_that_ends_before_an_engine_had_its_lines_is_no_loss(
    session: Session, storage: Storage, run: Run
) -> None:
    batch = run(1)
    lose(session, storage, claim_first(session, batch))
    for _ in range(4):
        end_lease(session, claim_first(session, batch))
        assert reap(session, storage) == [Reaped.READY]
    assert claim_first(session, batch).lost_leases == 1, "of the one lease under which it was started"


def test_leases_returned_at_a_start_are_no_loss(session: Session, run: Run) -> None:
    batch = run(8)
    claims = [claim_one(session, chunk_id) for chunk_id in chunk_ids(session, batch)]
    assert return_leases(session) == 2
    assert states(session, batch) == ["ready", "ready"]
    assert claim_first(session, batch).lost_leases == 0
    with pytest.raises(FencedOutError):
        leasing.extend(session, claims[1], LEASE)
