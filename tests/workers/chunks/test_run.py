"""Tests of a claimed chunk from first line to last, on a real database, with an engine that answers on command."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import event, make_url, text

from jobs.batches import lifecycle
from jobs.database import connect, sessions
from jobs.lines.bodies import COMPLETION_ENDPOINT
from jobs.settings import Settings
from jobs.tables import Batch, Tenant
from tests.workers.chunks.builders import BILLED, CHUNKS, RESULTS, Bench, FakeHost, MakeLine, SubmitLines
from workers.chunks import results
from workers.drain import Drain


def test_a_chunk_runs_to_its_end_and_every_line_is_billed_once(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(number) for number in range(4)])
    host.instant = True
    bench.start(bench.claim())
    bench.join()
    assert bench.rows(CHUNKS) == [("done", 1)]
    assert bench.rows(RESULTS) == [(number, 200) for number in range(4)]
    assert bench.rows(BILLED) == [(4, 8)]


def test_a_short_chunk_begins_in_one_transaction_and_ends_in_another(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(number) for number in range(4)])
    # Nothing is due except at the end.
    bench.change_parts(settings=Settings(heartbeat_seconds=100, flush_seconds=100, lease_seconds=600))
    host.instant = True
    claim, commits = bench.claim(), list[object]()
    event.listen(bench.maker.kw["bind"], "commit", commits.append)
    bench.start(claim)
    bench.join()
    assert len(commits) == 3, "to begin, to cover the lines, to write and end"
    assert bench.rows(CHUNKS) == [("done", 1)]
    assert bench.rows(BILLED) == [(4, 8)]


def test_large_answers_are_written_before_the_next_one_is_made(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_valid([line(number) for number in range(4)])
    bench.change_parts(settings=Settings(heartbeat_seconds=100, flush_seconds=100, lease_seconds=600))
    monkeypatch.setattr(results, "MAX_HELD_BYTES", 20)
    host.instant = True
    bench.start(bench.claim())
    bench.join()
    assert bench.rows("SELECT num_results::int FROM ledger ORDER BY id") == [(1,)] * 4
    assert bench.rows(BILLED) == [(4, 8)]


def test_an_answer_that_postgres_could_not_store_is_its_line_s_error(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_valid([line(0)])
    monkeypatch.setattr(results, "MAX_RESULT_BYTES", 20)
    host.instant = True
    bench.start(bench.claim())
    bench.join()
    assert bench.rows("SELECT is_error, output_tokens::int FROM result") == [(True, 0)]
    assert bench.rows(
        "SELECT convert_from(line, 'UTF8') ~ 'answer has [0-9]+ bytes; at most 20 are stored' FROM result"
    ) == [(True,)]


def test_a_worker_that_lost_its_lease_writes_nothing_and_stops(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0), line(1)])
    bench.start(bench.claim())
    host.wait_for(2)
    with bench.maker.begin() as session:
        session.execute(text("UPDATE chunk SET fence = fence + 1"))
    host.answer(1)
    bench.join()
    assert bench.rows(RESULTS) == []
    assert host.aborted == [1]
    assert bench.rows(CHUNKS) == [("leased", 2)], "it belongs to another worker now"


def test_cancelling_stops_the_engine_and_keeps_what_was_finished(
    bench: Bench,
    host: FakeHost,
    submit_valid: SubmitLines,
    line: MakeLine,
    tenant: Tenant,
    read_batch: Callable[[str], Batch],
) -> None:
    batch_id = submit_valid([line(number) for number in range(4)])
    bench.start(bench.claim())
    host.wait_for(4)
    host.answer(1)
    bench.wait_until("SELECT count(*)::int FROM result", [(1,)])
    with bench.maker.begin() as session:
        lifecycle.cancel_batch(session, tenant.id, batch_id)
    bench.join()
    assert sorted(host.aborted) == [1, 2, 3]
    assert bench.rows("SELECT state FROM chunk") == [("withdrawn",)]
    batch = read_batch(batch_id)
    assert (batch.num_completed, batch.num_truncated) == (1, 1), "the host ends answers at their limit"


def test_the_lease_is_held_while_the_engine_moves_and_left_to_end_when_it_does_not(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine, drain: Drain
) -> None:
    submit_valid([line(0)])
    bench.start(bench.claim())
    host.wait_for(1)
    lease = "SELECT lease_until > now() + interval '10 seconds' FROM chunk"
    bench.age_lease()
    bench.wait_until(lease, [(True,)])
    host.is_silent = True
    host.wait_for_silent_checks(1)  # a heartbeat in progress has finished
    with bench.maker.begin() as session:
        session.execute(text("UPDATE chunk SET lease_until = now() + interval '5 seconds'"))
    host.wait_for_silent_checks(3)
    assert bench.rows(lease) == [(False,)]
    host.answer(1)
    bench.join()


def test_the_lease_is_held_while_other_chunks_have_every_connection_of_the_flushes(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine, database_url: str
) -> None:
    flushes = connect(database_url, connections=1)
    bench.change_parts(sessions=sessions(flushes))
    submit_valid([line(0)])
    bench.start(bench.claim())
    host.wait_for(1)
    with flushes.connect():
        bench.age_lease()
        bench.wait_until("SELECT lease_until > now() + interval '10 seconds' FROM chunk", [(True,)])
        host.answer(1)
    bench.join()
    flushes.dispose()
    assert bench.rows(CHUNKS) == [("done", 1)]


def test_a_break_of_the_database_connection_is_survived(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0), line(1)])
    bench.start(bench.claim())
    host.wait_for(2)
    with bench.maker.begin() as session:
        session.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
        )
    host.answer(2)
    bench.join()
    assert bench.rows(CHUNKS) == [("done", 1)]
    assert bench.rows(BILLED) == [(2, 4)]


def test_priority_deadline_tenant_and_weight_reach_the_engine(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine, tenant: Tenant
) -> None:
    submit_valid([line(0)])
    claim = bench.claim()
    bench.start(claim)
    host.wait_for(1)
    request, _ = host.waiting[0]
    assert (request.priority, request.tenant, request.weight) == (1, tenant.id, claim.weight)
    assert request.deadline == claim.expires_at.timestamp()
    host.answer(1)
    bench.join()


def test_each_prompt_of_a_line_is_sampled_with_its_own_seed(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines
) -> None:
    body = {"model": "demo", "prompt": ["Total"] * 3, "max_tokens": 4}
    asked = {"custom_id": "c", "method": "POST", "url": COMPLETION_ENDPOINT, "body": body}
    submit_valid([asked], endpoint=COMPLETION_ENDPOINT)
    bench.start(bench.claim())
    host.wait_for(3)
    assert len({request.params.seed for request, _ in host.waiting.values()}) == 3
    host.answer(3)
    bench.join()
    assert bench.rows(RESULTS) == [(0, 200)]


def test_a_flush_that_waits_for_a_lock_is_repeated_and_the_lease_is_held_meanwhile(
    bench: Bench, host: FakeHost, database_url: str, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0), line(1)])
    impatient = connect(
        make_url(database_url).update_query_dict({"options": "-c lock_timeout=100ms"}).render_as_string(False)
    )
    bench.change_parts(sessions=sessions(impatient))
    bench.start(bench.claim())
    host.wait_for(2)
    with bench.maker.begin() as session:
        session.execute(text("SELECT FROM batch FOR UPDATE"))
        host.answer(2)
        for _ in range(3):
            bench.age_lease()
            bench.wait_until("SELECT lease_until > now() + interval '10 seconds' FROM chunk", [(True,)])
    bench.join()
    impatient.dispose()
    assert bench.rows(CHUNKS) == [("done", 1)]
    assert bench.rows(BILLED) == [(2, 4)]
