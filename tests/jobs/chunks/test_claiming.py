"""Tests of claims: one owner at a time, few rows read, and a suspect's last try shared with no other chunk."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts.prices import Prices
from jobs.chunks import claiming, covering, leasing
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.wanted import Wanted
from jobs.engines import fits
from jobs.engines.engine import OWN_ENGINE
from jobs.errors import FencedOutError
from jobs.lines.document_bodies import PREPARE_MODEL
from jobs.states import Priority
from jobs.storage import Storage
from jobs.tables import Chunk, Tenant
from tests.jobs.chunks.builders import (
    LEASE,
    Run,
    chunk_ids,
    claim_first,
    claim_one,
)


def test_a_claim_holds_all_that_a_worker_needs(session: Session, run: Run, storage: Storage) -> None:
    batch = run(6)
    claim = claim_one(session, chunk_ids(session, batch)[1])
    assert (claim.fence, claim.first_line, claim.num_lines, claim.num_requests) == (1, 4, 2, 2)
    assert (claim.endpoint, claim.model, claim.priority) == ("/v1/chat/completions", "m", "normal")
    assert claim.prices == Prices(input_picos=1_000_000, output_picos=2_000_000)
    lines = claim.split(storage.read_range(claim.object_key, claim.byte_start, claim.byte_end))
    assert [(line.line_no, json.loads(line.content or b"")["custom_id"]) for line in lines] == [(4, "a4"), (5, "a5")]


def test_a_repeated_hint_claims_nothing(session: Session, run: Run) -> None:
    batch = run(1)
    claim = claim_first(session, batch)
    assert claiming.claim_chunk(session, claim.chunk_id, worker_id="w2", lease=LEASE) is None


def test_of_two_claimers_at_once_one_wins(session: Session, maker: sessionmaker[Session], run: Run) -> None:
    (chunk_id,) = chunk_ids(session, run(1))
    session.commit()
    barrier, won = threading.Barrier(2), []

    def claim(worker_id: str) -> None:
        with maker.begin() as own:
            barrier.wait()
            if claiming.claim_chunk(own, chunk_id, worker_id=worker_id, lease=LEASE) is not None:
                won.append(worker_id)

    threads = [threading.Thread(target=claim, args=(name,)) for name in ("w1", "w2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert session.execute(select(Chunk.fence, Chunk.worker_id)).all() == [(1, won[0])]


def test_a_chunk_of_a_cancelled_batch_cannot_be_claimed(session: Session, run: Run) -> None:
    batch = run(1)
    (chunk_id,) = chunk_ids(session, batch)
    session.execute(text("UPDATE batch SET state = 'cancelling'"))
    assert claiming.claim_chunk(session, chunk_id, worker_id="w1", lease=LEASE) is None


def test_a_worker_without_hints_takes_the_next_chunk(session: Session, run: Run) -> None:
    batch = run(8)
    first, second = chunk_ids(session, batch)
    session.execute(text("UPDATE chunk SET hinted_at = clock_timestamp()"))  # by a dispatcher whose broker is down
    claims = [claiming.claim_next(session, model="m", worker_id="w1", lease=LEASE) for _ in range(3)]
    assert [claim.chunk_id if claim else None for claim in claims] == [first, second, None]
    assert claiming.claim_next(session, model="other", worker_id="w1", lease=LEASE) is None


def test_where_nothing_is_ready_a_worker_asks_one_short_question(
    session: Session, run: Run, statements: list[tuple[str, Any]]
) -> None:
    run(4)
    assert claiming.claim_next(session, model="m", worker_id="w", lease=LEASE) is not None
    session.commit()
    statements.clear()
    assert claiming.claim_next(session, model="m", worker_id="w", lease=LEASE) is None
    assert [statement[:14] for statement, _ in statements] == ["SELECT EXISTS "]


def test_chunks_that_others_are_claiming_hold_no_claim_up(
    session: Session, maker: sessionmaker[Session], run: Run
) -> None:
    ids = chunk_ids(session, run(12 * 4))
    with maker.begin() as others:
        others.execute(select(Chunk.id).where(Chunk.id.in_(ids[:10])).with_for_update())
        session.execute(text("SET LOCAL lock_timeout = '5s'"))
        claim = claiming.claim_next(session, model="m", worker_id="w1", lease=LEASE)
    assert claim is not None
    assert claim.chunk_id == ids[10]


def test_a_claim_is_good_for_its_owner_only_whatever_the_fence(session: Session, run: Run) -> None:
    """After a failover that lost the last claim, two workers may have received the same fence."""
    run(4)
    claim = claiming.claim_next(session, model="m", worker_id="w2", lease=LEASE)
    assert claim is not None
    lost = replace(claim, worker_id="w1")
    uses: list[Callable[[], object]] = [
        lambda: leasing.start(session, lost),
        lambda: leasing.extend(session, lost, LEASE),
        lambda: leasing.release(session, lost),
        lambda: leasing.flush(session, lost, [], flush_no=1, lease=LEASE),
        lambda: covering.cover(session, lost, [10], covered=0),
    ]
    for use in uses:
        with pytest.raises(FencedOutError):
            use()
    assert leasing.extend(session, claim, LEASE).batch_wanted


def test_a_claim_for_newcomers_passes_over_tenants_that_are_present(session: Session, run: Run, tenant: Tenant) -> None:
    normal = run(4, priority="normal")

    def claimed_batch(*, present: str) -> str | None:
        look = Wanted(classes=[], newcomer_classes=[Priority.NORMAL], present={present})
        claim = claiming.claim_next(session, model="m", worker_id="w1", lease=LEASE, wanted=look)
        return None if claim is None else claim.batch_id

    assert claimed_batch(present=tenant.id) is None
    assert claimed_batch(present="another") == normal.id


def test_a_claim_of_certain_classes_takes_no_other(session: Session, run: Run) -> None:
    bulk, urgent = run(4, priority="bulk"), run(4, priority="urgent")

    def claimed_batch(*classes: Priority) -> str | None:
        claim = claiming.claim_next(session, model="m", worker_id="w1", lease=LEASE, wanted=Wanted(classes=classes))
        return None if claim is None else claim.batch_id

    assert claimed_batch(Priority.NORMAL) is None
    assert claimed_batch(Priority.URGENT, Priority.NORMAL) == urgent.id
    assert claimed_batch(Priority.URGENT, Priority.NORMAL) is None
    assert claimed_batch(*Priority) == bulk.id


def test_a_claim_reads_its_candidates_and_not_the_backlog(session: Session, run: Run) -> None:
    """Right after the planning of a large batch, before ANALYZE has counted its rows."""
    batch = run(4)
    session.execute(
        text("""
            INSERT INTO chunk (batch_id, tenant_id, model, priority, expires_at, first_line, num_lines, num_requests,
                byte_start, byte_end, estimated_tokens)
            SELECT batch_id, tenant_id, model, priority, expires_at, 0, 1, 1, 0, 1, 1
            FROM chunk, generate_series(1, 20000)
        """)
    )
    values = {
        "chunk_ids": chunk_ids(session, batch)[:8],
        "owner": "w1",
        "lease": LEASE,
        "after": "leased",
        "sources": ["ready"],
        "suspect": 2,
        "urgent_tokens": 100,
        "prepare_model": PREPARE_MODEL,
        **fits.values_of(OWN_ENGINE),
    }
    plan = session.scalar(text("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + str(claiming._CLAIM)), values)
    assert isinstance(plan, list)
    assert plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"] < 200


def test_only_the_owner_starts_a_chunk(session: Session, run: Run) -> None:
    batch = run(4)
    claim = claim_first(session, batch)
    leasing.release(session, claim)
    claim_first(session, batch, "w2")
    with pytest.raises(FencedOutError):
        leasing.start(session, claim)


def test_the_last_chance_of_a_line_is_not_shared_with_another_suspect(session: Session, run: Run) -> None:
    first, second, third = chunk_ids(session, run(9))
    session.execute(text("UPDATE chunk SET losses = 2 WHERE id = ANY(:ids)"), {"ids": [second, third]})
    assert claiming.claim_chunk(session, third, worker_id="w1", lease=LEASE) is not None
    assert claiming.claim_chunk(session, second, worker_id="w1", lease=LEASE) is None
    assert claiming.claim_chunk(session, first, worker_id="w1", lease=LEASE) is not None
    assert claiming.claim_chunk(session, second, worker_id="w2", lease=LEASE) is not None


def test_two_threads_of_one_worker_do_not_both_get_a_last_chance(
    session: Session, maker: sessionmaker[Session], run: Run
) -> None:
    first, second = chunk_ids(session, run(5))
    session.execute(text("UPDATE chunk SET losses = 2"))
    session.commit()
    claims: list[ClaimedChunk | None] = []

    def claim_second() -> None:
        with maker.begin() as own:
            claims.append(claiming.claim_chunk(own, second, worker_id="w1", lease=LEASE))

    with maker.begin() as own:
        assert claiming.claim_chunk(own, first, worker_id="w1", lease=LEASE) is not None
        thread = threading.Thread(target=claim_second)
        thread.start()
        while thread.is_alive() and not session.scalar(text("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")):
            session.rollback()
    thread.join()
    assert claims == [None]
