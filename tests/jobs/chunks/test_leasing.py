"""Chunks: one owner at a time, results once, money once, whatever dies; lost leases find the poison line."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import budgets
from jobs.accounts.prices import Prices, cost_micros
from jobs.batches import lifecycle
from jobs.batches.lost_leases import Reaped, reap_expired, reap_suspects, return_leases
from jobs.chunks import leasing
from jobs.chunks.leasing import ClaimedChunk, MissingResultsError
from jobs.chunks.recording import LineResult
from jobs.database import sessions
from jobs.errors import FencedOutError, ServiceError
from jobs.lines.output_lines import output_line
from jobs.served_models import MAX_PRICE_MICROS, set_prices
from jobs.states import BatchState, ChunkState, InvalidLines, Priority
from jobs.storage import Storage
from jobs.tables import Batch, Chunk, Ledger, Result, Tenant

Run = Callable[..., Batch]
LEASE = timedelta(seconds=20)
ENDED = timedelta(0)  # `end_lease` moves the end alone: the servers of tests are younger than a lease


def chunk_ids(session: Session, batch: Batch) -> list[int]:
    return list(session.scalars(select(Chunk.id).where(Chunk.batch_id == batch.id).order_by(Chunk.id)))


def states(session: Session, batch: Batch) -> list[str]:
    return list(session.scalars(select(Chunk.state).where(Chunk.batch_id == batch.id).order_by(Chunk.id)))


def take(session: Session, chunk_id: int, worker_id: str = "w1") -> ClaimedChunk:
    claim = leasing.claim_chunk(session, chunk_id, worker_id=worker_id, lease=LEASE)
    session.commit()
    assert claim is not None
    return claim


def take_first(session: Session, batch: Batch, worker_id: str = "w1") -> ClaimedChunk:
    return take(session, chunk_ids(session, batch)[0], worker_id)


def answer(claim: ClaimedChunk, line_no: int, *, input_tokens: int = 5, output_tokens: int = 3) -> LineResult:
    line = output_line(claim.batch_id, line_no, f"a{line_no}", status_code=200, body={})
    return LineResult(
        line_no=line_no,
        line=line,
        status_code=200,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=1,
    )


def answers(claim: ClaimedChunk, line_nos: Iterable[int]) -> list[LineResult]:
    return [answer(claim, line_no) for line_no in line_nos]


def flush(session: Session, claim: ClaimedChunk, line_nos: Iterable[int], *, flush_no: int = 0) -> leasing.FlushOutcome:
    outcome = leasing.flush(session, claim, answers(claim, line_nos), flush_no=flush_no, lease=LEASE)
    session.commit()
    return outcome


def end_lease(session: Session, claim: ClaimedChunk) -> None:
    """Move time on for one lease: nobody sleeps here."""
    session.execute(
        text(
            "UPDATE chunk SET lease_until = clock_timestamp() - interval '1 second' WHERE id = :id AND state = 'leased'"
        ),
        {"id": claim.chunk_id},
    )
    session.commit()


def lose(session: Session, storage: Storage, claim: ClaimedChunk) -> list[Reaped]:
    """Let a lease end while an engine runs the chunk's lines."""
    leasing.start(session, claim)
    end_lease(session, claim)
    return reap(session, storage)


def reap(session: Session, storage: Storage, *, lease: timedelta = ENDED) -> list[Reaped]:
    """Do both halves of what dispatchers do of lost leases."""
    reaped = reap_expired(session, lease=lease)
    session.commit()
    engine = session.get_bind()
    assert isinstance(engine, Engine)
    return reaped + reap_suspects(sessions(engine), storage, lease=lease)


def totals(session: Session, batch: Batch) -> dict[str, int]:
    """Count what results, ledger, batch and budget say of the same thing."""
    session.refresh(batch)
    query = text("""
        SELECT (SELECT count(*) FROM result WHERE batch_id = :id) AS results,
            (SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM result WHERE batch_id = :id) AS result_tokens,
            (SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM ledger WHERE batch_id = :id) AS ledger_tokens,
            (SELECT spent_tokens FROM budget WHERE tenant_id = :tenant_id) AS spent
    """)
    row = session.execute(query, {"id": batch.id, "tenant_id": batch.tenant_id}).one()
    return {name: int(value) for name, value in row._mapping.items()} | {
        "counted": batch.num_completed + batch.num_failed,
        "batch_tokens": batch.input_tokens + batch.output_tokens,
    }


def expected(num_results: int, *, tokens: int) -> dict[str, int]:
    money = dict.fromkeys(("result_tokens", "ledger_tokens", "spent", "batch_tokens"), tokens)
    return money | {"results": num_results, "counted": num_results}


# --- claims ----------------------------------------------------------------------------------------------------------


def test_a_claim_holds_all_that_a_worker_needs(session: Session, run: Run, storage: Storage) -> None:
    batch = run(6)
    claim = take(session, chunk_ids(session, batch)[1])
    assert (claim.fence, claim.first_line, claim.num_lines, claim.num_requests) == (1, 4, 2, 2)
    assert (claim.endpoint, claim.model, claim.priority) == ("/v1/chat/completions", "m", "normal")
    assert claim.prices == Prices(input_micros=1_000_000, output_micros=2_000_000)
    lines = claim.split(storage.read_range(claim.object_key, claim.byte_start, claim.byte_end))
    assert [(line.line_no, json.loads(line.content or b"")["custom_id"]) for line in lines] == [(4, "a4"), (5, "a5")]


def test_a_repeated_hint_claims_nothing(session: Session, run: Run) -> None:
    batch = run(1)
    claim = take_first(session, batch)
    assert leasing.claim_chunk(session, claim.chunk_id, worker_id="w2", lease=LEASE) is None


def test_of_two_claimers_at_once_one_wins(session: Session, maker: sessionmaker[Session], run: Run) -> None:
    (chunk_id,) = chunk_ids(session, run(1))
    session.commit()
    barrier, won = threading.Barrier(2), []

    def claim(worker_id: str) -> None:
        with maker.begin() as own:
            barrier.wait()
            if leasing.claim_chunk(own, chunk_id, worker_id=worker_id, lease=LEASE) is not None:
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
    assert leasing.claim_chunk(session, chunk_id, worker_id="w1", lease=LEASE) is None


def test_a_worker_without_hints_takes_the_next_chunk(session: Session, run: Run) -> None:
    batch = run(8)
    first, second = chunk_ids(session, batch)
    session.execute(text("UPDATE chunk SET hinted_at = clock_timestamp()"))  # by a dispatcher whose broker is dead
    claims = [leasing.claim_next(session, model="m", worker_id="w1", lease=LEASE) for _ in range(3)]
    assert [claim.chunk_id if claim else None for claim in claims] == [first, second, None]
    assert leasing.claim_next(session, model="other", worker_id="w1", lease=LEASE) is None


# --- flushes ---------------------------------------------------------------------------------------------------------


def test_chunks_that_others_are_claiming_hold_no_claim_up(
    session: Session, maker: sessionmaker[Session], run: Run
) -> None:
    ids = chunk_ids(session, run(12 * 4))
    with maker.begin() as others:
        others.execute(select(Chunk.id).where(Chunk.id.in_(ids[:10])).with_for_update())
        session.execute(text("SET LOCAL lock_timeout = '5s'"))
        claim = leasing.claim_next(session, model="m", worker_id="w1", lease=LEASE)
    assert claim is not None
    assert claim.chunk_id == ids[10]


def test_a_claim_of_certain_classes_takes_no_other(session: Session, run: Run) -> None:
    bulk, urgent = run(4, priority="bulk"), run(4, priority="urgent")

    def claimed_batch(*classes: Priority) -> str | None:
        claim = leasing.claim_next(session, model="m", worker_id="w1", lease=LEASE, classes=classes)
        return None if claim is None else claim.batch_id

    assert claimed_batch(Priority.NORMAL) is None
    assert claimed_batch(Priority.URGENT, Priority.NORMAL) == urgent.id
    assert claimed_batch(Priority.URGENT, Priority.NORMAL) is None
    assert claimed_batch(*Priority) == bulk.id


def test_a_claim_reads_its_candidates_and_not_the_backlog(session: Session, run: Run) -> None:
    """Right after a large batch was planned, before anybody has counted its rows for the planner."""
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
        "worker_id": "w1",
        "lease": LEASE,
        "after": "leased",
        "sources": ["ready"],
        "suspect": 2,
        "urgent_tokens": 100,
    }
    plan = session.scalar(text("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + str(leasing._CLAIM)), values)
    assert isinstance(plan, list)
    assert plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"] < 200


def test_a_flush_stores_counts_and_bills_in_one_transaction(session: Session, run: Run, tenant: Tenant) -> None:
    batch = run(4, reserved_tokens=100)
    claim = take_first(session, batch)
    outcome = flush(session, claim, [0, 2])
    assert (outcome.num_inserted, outcome.batch_wanted) == (2, True)
    assert totals(session, batch) == expected(2, tokens=16)
    assert (batch.cached_tokens, cost_micros(batch), batch.reserved_tokens) == (2, 10 * 1 + 6 * 2, 84)
    assert budgets.quota(session, tenant.id).reserved == 84
    entry = session.scalars(select(Ledger)).one()
    assert (entry.chunk_id, entry.fence, entry.flush_no, entry.num_results) == (claim.chunk_id, 1, 0, 2)
    assert (entry.input_tokens, entry.cached_tokens, entry.output_tokens, int(entry.cost_picos)) == (
        10,
        2,
        6,
        22_000_000,
    )
    assert leasing.lines_done(session, claim) == {0, 2}


@pytest.mark.parametrize(
    ("price", "shown"),
    [(60_000, 2), (65_000, 2)],  # 0.48 and 0.52 micro-units a line: rounded line by line four lines were 0 and 4
)
def test_a_bill_does_not_depend_on_how_results_were_flushed(session: Session, run: Run, price: int, shown: int) -> None:
    whole, by_line = run(96), run(4)
    set_prices(session, "m", input_price_micros=price, output_price_micros=price)
    for chunk_id in chunk_ids(session, whole):
        claim = take(session, chunk_id)
        flush(session, claim, range(claim.first_line, claim.first_line + claim.num_lines))
    claim = take_first(session, by_line)
    for line_no in range(4):
        flush(session, claim, [line_no], flush_no=line_no)
    for batch in (whole, by_line):
        session.refresh(batch)
    assert (int(by_line.cost_picos), int(whole.cost_picos)) == (4 * 8 * price, 96 * 8 * price)
    assert cost_micros(by_line) == shown


def test_each_part_of_a_bill_has_the_price_of_its_claim(session: Session, run: Run) -> None:
    batch = run(8)
    first, second = chunk_ids(session, batch)
    claims = [take(session, first)]
    set_prices(session, "m", input_price_micros=7, output_price_micros=MAX_PRICE_MICROS)
    claims.append(take(session, second))
    for claim in claims:
        flush(session, claim, [claim.first_line])
    query = select(Ledger.input_price_micros, Ledger.output_price_micros, Ledger.cost_picos).order_by(Ledger.id)
    dear = 5 * 7 + 3 * MAX_PRICE_MICROS
    rows = [tuple(int(value or 0) for value in row) for row in session.execute(query)]
    assert rows == [(1_000_000, 2_000_000, 11_000_000), (7, MAX_PRICE_MICROS, dear)]
    session.refresh(batch)
    assert cost_micros(batch) == (11_000_000 + dear + 500_000) // 10**6


def test_a_rolled_back_flush_leaves_nothing(session: Session, run: Run) -> None:
    batch = run(4)
    claim = take_first(session, batch)
    leasing.flush(session, claim, answers(claim, [0]), flush_no=0, lease=LEASE)
    session.rollback()
    assert totals(session, batch) == expected(0, tokens=0)


def test_a_flush_repeated_after_an_unknown_commit_bills_nothing_twice(session: Session, run: Run) -> None:
    batch = run(4)
    claim = take_first(session, batch)
    flush(session, claim, [0, 1])
    assert flush(session, claim, [0, 1]).num_inserted == 0
    assert totals(session, batch) == expected(2, tokens=16)


def test_lines_that_have_a_result_are_not_billed_by_a_later_flush(session: Session, run: Run) -> None:
    batch = run(4)
    claim = take_first(session, batch)
    flush(session, claim, [0, 1])
    assert flush(session, claim, [1, 2], flush_no=1).num_inserted == 1
    assert totals(session, batch) == expected(3, tokens=24)
    assert list(session.scalars(select(Result.result_no).order_by(Result.result_no))) == [1, 2, 3]


def test_a_flush_number_cannot_be_used_for_other_results(session: Session, run: Run) -> None:
    batch = run(4)
    claim = take_first(session, batch)
    flush(session, claim, [0])
    with pytest.raises(IntegrityError):
        leasing.flush(session, claim, answers(claim, [1]), flush_no=0, lease=LEASE)
    session.rollback()
    assert totals(session, batch) == expected(1, tokens=8)


def test_error_results_are_counted_as_failed(session: Session, run: Run) -> None:
    batch = run(4)
    claim = take_first(session, batch)
    results = [LineResult(line_no=0, line=b"{}", status_code=400), LineResult(line_no=1, line=b"{}", status_code=None)]
    leasing.flush(session, claim, [*results, answer(claim, 2)], flush_no=0, lease=LEASE)
    session.refresh(batch)
    assert (batch.num_completed, batch.num_failed) == (1, 2)


def test_a_line_of_another_chunk_is_our_own_mistake(session: Session, run: Run) -> None:
    claim = take_first(session, run(8))
    with pytest.raises(AssertionError, match="outside"):
        leasing.flush(session, claim, answers(claim, [4]), flush_no=0, lease=LEASE)


def test_a_zombies_flush_is_refused_after_the_chunk_was_claimed_again(
    session: Session, maker: sessionmaker[Session], storage: Storage, run: Run
) -> None:
    batch = run(4)
    zombie = take_first(session, batch)
    assert lose(session, storage, zombie) == [Reaped.READY]
    heir = take_first(session, batch, "w2")
    assert heir.fence == zombie.fence + 1
    with maker() as other, pytest.raises(FencedOutError):
        leasing.flush(other, zombie, answers(zombie, [0, 1]), flush_no=0, lease=LEASE)
    for act in (leasing.complete, leasing.release):
        with maker() as other, pytest.raises(FencedOutError):
            act(other, zombie)
    with maker() as other, pytest.raises(FencedOutError):
        leasing.extend(other, zombie, LEASE)
    flush(session, heir, [0, 1, 2, 3])
    assert totals(session, batch) == expected(4, tokens=32)


def test_a_zombies_flush_is_refused_even_before_anybody_claims_again(
    session: Session, storage: Storage, run: Run
) -> None:
    zombie = take_first(session, run(4))
    lose(session, storage, zombie)
    with pytest.raises(FencedOutError):
        flush(session, zombie, [0])


def test_a_late_flush_that_comes_before_the_reaper_keeps_the_chunk(
    session: Session, maker: sessionmaker[Session], storage: Storage, run: Run
) -> None:
    batch = run(4)
    claim = take_first(session, batch)
    end_lease(session, claim)
    with maker.begin() as worker:
        leasing.flush(worker, claim, answers(claim, [0]), flush_no=0, lease=LEASE)
        assert reap(session, storage) == []  # does not wait for the row either
        session.commit()
    assert reap(session, storage) == []
    assert states(session, batch) == ["leased"]


def test_flushes_of_many_workers_number_their_results_without_gaps(
    session: Session, maker: sessionmaker[Session], run: Run
) -> None:
    batch = run(24)
    claims = [take(session, chunk_id, f"w{chunk_id}") for chunk_id in chunk_ids(session, batch)]

    def work(claim: ClaimedChunk) -> None:
        for flush_no, line_no in enumerate(range(claim.first_line, claim.first_line + 4)):
            with maker.begin() as own:
                leasing.flush(own, claim, answers(claim, [line_no]), flush_no=flush_no, lease=LEASE)

    threads = [threading.Thread(target=work, args=(claim,)) for claim in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals(session, batch) == expected(24, tokens=24 * 8)
    assert list(session.scalars(select(Result.result_no).order_by(Result.result_no))) == list(range(1, 25))


# --- ends ------------------------------------------------------------------------------------------------------------


def test_a_heartbeat_extends_the_lease(session: Session, run: Run, storage: Storage) -> None:
    claim = take_first(session, run(4))
    end_lease(session, claim)
    assert leasing.extend(session, claim, LEASE).batch_wanted
    assert reap(session, storage) == []


def test_a_chunk_is_complete_when_every_request_has_a_result(session: Session, run: Run) -> None:
    batch = run(4)
    claim = take_first(session, batch)
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
    claim = take_first(session, batch)
    assert leasing.lines_done(session, claim) == {1}
    flush(session, claim, [0, 3])
    leasing.complete(session, claim)
    assert states(session, batch) == ["done"]


def test_a_chunk_given_back_is_no_loss_and_keeps_its_results(session: Session, run: Run) -> None:
    batch = run(4)
    claim = take_first(session, batch)
    flush(session, claim, [1])
    leasing.release(session, claim)
    session.commit()
    again = take_first(session, batch, "w2")
    assert (again.lost_leases, again.fence) == (0, 2)
    assert leasing.lines_done(session, again) == {1}


def test_workers_of_a_cancelled_batch_learn_it_and_keep_what_is_finished(
    session: Session, maker: sessionmaker[Session], run: Run
) -> None:
    batch = run(8)
    claim = take_first(session, batch)
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
    claim = take_first(session, batch)
    releasing = maker()
    leasing.release(releasing, claim)  # not committed: the cancel has to wait for it

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


# --- losses ----------------------------------------------------------------------------------------------------------


def test_an_expired_lease_returns_the_chunk_to_the_queue(session: Session, storage: Storage, run: Run) -> None:
    batch = run(4)
    claim = take_first(session, batch)
    assert lose(session, storage, claim) == [Reaped.READY]
    assert states(session, batch) == ["ready"]
    assert take_first(session, batch).lost_leases == 1


def test_after_two_losses_a_chunk_is_bisected_over_its_unfinished_lines(
    session: Session, storage: Storage, run: Run
) -> None:
    batch = run(4)
    lose(session, storage, take_first(session, batch))
    claim = take_first(session, batch)
    flush(session, claim, [0])
    assert lose(session, storage, claim) == [Reaped.SPLIT]
    parent, *children = session.scalars(select(Chunk).order_by(Chunk.id)).all()
    assert parent.state == "split"
    spans = [(child.first_line, child.num_lines, child.num_requests, child.losses) for child in children]
    assert spans == [(1, 1, 1, 0), (2, 2, 2, 2)]
    last = take(session, children[1].id)
    lines = last.split(storage.read_range(last.object_key, last.byte_start, last.byte_end))
    assert [json.loads(line.content or b"")["custom_id"] for line in lines] == ["a2", "a3"]


def test_a_line_that_kills_every_engine_is_failed_and_the_rest_completes(
    session: Session, storage: Storage, run: Run
) -> None:
    batch, poison, num_deaths = run(4), 2, 0
    while claim := leasing.claim_next(session, model="m", worker_id=f"w{num_deaths}", lease=LEASE):
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
    outcomes = [lose(session, storage, take_first(session, batch)) for _ in range(3)]
    assert outcomes == [[Reaped.READY], [Reaped.READY], [Reaped.FAILED]]
    assert states(session, batch) == ["done"]


def test_a_chunk_lost_after_its_last_result_is_done(session: Session, storage: Storage, run: Run) -> None:
    batch = run(2)
    lose(session, storage, take_first(session, batch))
    claim = take_first(session, batch)
    flush(session, claim, [0, 1])
    assert lose(session, storage, claim) == [Reaped.DONE]


def test_a_lost_chunk_of_a_cancelled_batch_is_withdrawn(session: Session, storage: Storage, run: Run) -> None:
    batch = run(4)
    claim = take_first(session, batch)
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
    lose(session, storage, take(session, first))
    for chunk_id in (first, second):
        claim = take(session, chunk_id)
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
    lose(session, storage, take_first(session, batch))
    claim = take_first(session, batch)
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
                take_first(session, batch, "w2")
            return storage.read_range(key, start, end)

    assert reap_suspects(maker, Slow(), lease=ENDED) == []
    assert states(session, batch) == ["ready" if change == "given back" else "leased"]


def test_a_lease_that_could_not_be_extended_while_postgres_was_away_is_no_loss(
    session: Session, storage: Storage, run: Run
) -> None:
    batch = run(4)
    since_before_the_server_started = timedelta(days=365)
    for _ in range(5):
        end_lease(session, take_first(session, batch))
        assert reap(session, storage, lease=since_before_the_server_started) == [Reaped.READY]
        session.commit()
    assert take_first(session, batch).lost_leases == 0
    session.execute(text("UPDATE chunk SET state = 'ready', losses = 2"))
    end_lease(session, take_first(session, batch))
    assert reap(session, storage, lease=since_before_the_server_started) == [Reaped.READY]
    assert take_first(session, batch).lost_leases == 2, "nor does it split a suspect or forgive it"


def test_a_lease_that_ends_before_an_engine_had_its_lines_is_no_loss(
    session: Session, storage: Storage, run: Run
) -> None:
    batch = run(1)
    lose(session, storage, take_first(session, batch))
    for _ in range(4):
        end_lease(session, take_first(session, batch))
        assert reap(session, storage) == [Reaped.READY]
    assert take_first(session, batch).lost_leases == 1, "of the one lease under which it was started"


def test_only_the_owner_starts_a_chunk(session: Session, run: Run) -> None:
    batch = run(4)
    claim = take_first(session, batch)
    leasing.release(session, claim)
    take_first(session, batch, "w2")
    with pytest.raises(FencedOutError):
        leasing.start(session, claim)


def test_leases_returned_at_a_start_are_no_loss(session: Session, run: Run) -> None:
    batch = run(8)
    claims = [take(session, chunk_id) for chunk_id in chunk_ids(session, batch)]
    assert return_leases(session) == 2
    assert states(session, batch) == ["ready", "ready"]
    assert take_first(session, batch).lost_leases == 0
    with pytest.raises(FencedOutError):
        leasing.extend(session, claims[1], LEASE)


def test_the_last_chance_of_a_line_is_not_shared_with_another_suspect(session: Session, run: Run) -> None:
    first, second, third = chunk_ids(session, run(9))
    session.execute(text("UPDATE chunk SET losses = 2 WHERE id = ANY(:ids)"), {"ids": [second, third]})
    assert leasing.claim_chunk(session, third, worker_id="w1", lease=LEASE) is not None
    assert leasing.claim_chunk(session, second, worker_id="w1", lease=LEASE) is None
    assert leasing.claim_chunk(session, first, worker_id="w1", lease=LEASE) is not None
    assert leasing.claim_chunk(session, second, worker_id="w2", lease=LEASE) is not None


def test_two_threads_of_one_worker_do_not_both_get_a_last_chance(
    session: Session, maker: sessionmaker[Session], run: Run
) -> None:
    first, second = chunk_ids(session, run(5))
    session.execute(text("UPDATE chunk SET losses = 2"))
    session.commit()
    claims: list[ClaimedChunk | None] = []

    def claim_second() -> None:
        with maker.begin() as own:
            claims.append(leasing.claim_chunk(own, second, worker_id="w1", lease=LEASE))

    with maker.begin() as own:
        assert leasing.claim_chunk(own, first, worker_id="w1", lease=LEASE) is not None
        thread = threading.Thread(target=claim_second)
        thread.start()
        while thread.is_alive() and not session.scalar(text("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")):
            session.rollback()
    thread.join()
    assert claims == [None]


# --- fair share ------------------------------------------------------------------------------------------------------


def virtual_time(session: Session) -> float:
    return float(session.scalar(text("SELECT virtual_time FROM fair_share")) or 0)


@pytest.mark.parametrize("end", [leasing.complete, leasing.release])
def test_virtual_time_is_charged_by_estimate_and_corrected_by_use(
    session: Session, run: Run, end: Callable[[Session, ClaimedChunk], Any]
) -> None:
    batch = run(4)
    session.execute(text("UPDATE tenant SET weight = 2"))
    claim = take_first(session, batch)
    assert virtual_time(session) == claim.estimated_tokens / 2
    flush(session, claim, [0, 1, 2, 3])
    end(session, claim)
    assert virtual_time(session) == 4 * 8 / 2


def test_a_lost_lease_is_charged_for_what_it_delivered(session: Session, storage: Storage, run: Run) -> None:
    claim = take_first(session, run(4))
    flush(session, claim, [0])
    lose(session, storage, claim)
    assert virtual_time(session) == 8


def test_states_outside_the_table_are_not_reached(session: Session, run: Run) -> None:
    claim = take_first(session, run(1))
    flush(session, claim, [0])
    leasing.complete(session, claim)
    assert leasing.withdraw_open(session, claim.batch_id) == 0
    assert session.scalars(select(Chunk.state)).one() == ChunkState.DONE
    assert session.scalars(select(Batch.state)).one() == BatchState.IN_PROGRESS
