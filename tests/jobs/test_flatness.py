"""Tests that polled statements cost only what is due, whatever else waits or has ended: rows are counted, not time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.orm import Session

from jobs import metrics
from jobs.batches import deletion, lost_leases, planned, sweeps
from jobs.chunks import fleet, waiting
from jobs.database import connect, sessions
from jobs.forecasts import snapshot
from jobs.overview import backlog, listing, shares
from jobs.overview import fleet as fleet_overview
from jobs.overview.listing import BatchFilter, Shown
from jobs.retention import history, purging
from tests.database_roles import as_superuser

FEW = 60
"""Maximum rows that a statement may read: hundreds are open and not due, thousands have ended."""

# 200 open batches with 10 open chunks each among 2,810 ended ones; one whose 300 chunks were tried and wait for more
# tokens than their tenant has; 4 live workers among 3,000.
BUILD = """
    INSERT INTO tenant (id, name) VALUES ('tenant_1', 'one');
    INSERT INTO budget (tenant_id, limit_tokens) VALUES ('tenant_1', 1000000000);
    INSERT INTO file (id, tenant_id, purpose, filename, size_bytes, object_key)
        SELECT 'file_' || n, 'tenant_1', 'batch', 'f', 1, 'o' || n FROM generate_series(1, 3010) AS n;
    INSERT INTO batch (id, tenant_id, input_file_id, output_file_id, endpoint, completion_window, fingerprint, model,
            state, num_requests, num_completed, created_at, expires_at, completed_at)
        SELECT 'batch_' || n, 'tenant_1', 'file_' || n, 'file_' || n, 'e', '24h', 'f' || n, 'm',
            CASE WHEN n <= 200 THEN 'in_progress' ELSE 'completed' END, 10, CASE WHEN n <= 200 THEN 0 ELSE 10 END,
            now() - interval '1 second' * (n * 7 % 3010), now() + interval '1 day', CASE WHEN n > 200 THEN now() END
        FROM generate_series(1, 3010) AS n;
    INSERT INTO chunk (batch_id, tenant_id, model, priority, expires_at, first_line, num_lines, num_requests,
            byte_start, byte_end, estimated_tokens, state)
        SELECT id, tenant_id, 'm', priority, expires_at, number, 1, 1, 0, 9, 1,
            CASE WHEN state = 'in_progress' THEN 'ready' ELSE 'done' END
        FROM batch, generate_series(0, 9) AS number;
    INSERT INTO decision (batch_id, kind, subject, num, first_at, last_at)
        SELECT id, 'claimed', 'worker_1', 1, now(), now() FROM batch;
    INSERT INTO tenant (id, name) VALUES ('tenant_2', 'two');
    INSERT INTO budget (tenant_id, limit_tokens) VALUES ('tenant_2', 10);
    INSERT INTO batch (id, tenant_id, input_file_id, endpoint, completion_window, fingerprint, model, state,
            num_requests, expires_at, waits_for_tokens)
        VALUES ('waiting', 'tenant_2', 'file_1', 'e', '24h', 'f', 'm', 'in_progress', 300,
            now() + interval '1 day', 50);
    INSERT INTO chunk (batch_id, tenant_id, model, priority, expires_at, first_line, num_lines, num_requests,
            byte_start, byte_end, estimated_tokens, state, fence, waits_for_tokens, needed_tokens)
        SELECT 'waiting', 'tenant_2', 'm', 'normal', now(), n, 1, 1, 0, 9, 50, 'waiting', 1, 50, 50
        FROM generate_series(1, 300) AS n;
    INSERT INTO worker (id, model, hostname, pid, max_chunks, max_model_len, heartbeat_at, stopped_at)
        SELECT 'worker_' || n, 'm', 'h', 1, 6, 64, now() - CASE WHEN n > 4 THEN interval '2 days' ELSE '0' END,
            CASE WHEN n > 4 AND n % 2 = 0 THEN now() END
        FROM generate_series(1, 3004) AS n;
"""


@pytest.fixture(scope="module")
def crowded(new_database: Callable[[], str]) -> Iterator[Engine]:
    engine = connect(as_superuser(new_database()))
    with engine.begin() as connection:
        for statement in BUILD.split(";\n"):
            connection.execute(text(statement))
    history.forget_workers(sessions(engine))
    with sessions(engine).begin() as session:
        metrics.count_queue(session)
    with engine.begin() as connection:
        connection.execute(text("ANALYZE"))
    yield engine
    engine.dispose()


def scans(plan: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the rows that each scan of a table or index read, including discarded ones."""
    for below in plan.get("Plans", []):
        yield from scans(below)
    if "Relation Name" in plan:
        dropped = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
        rows = (plan["Actual Rows"] + dropped) * plan["Actual Loops"]
        yield f"{plan['Node Type']} on {plan['Relation Name']}", int(rows)


def most_read(engine: Engine, work: Callable[[Session], object]) -> dict[str, int]:
    """Return, for each statement of `work`, the rows read by its largest scan."""
    sent: list[tuple[str, Any]] = []

    def note(_: object, __: object, statement: str, values: Any, *___: object) -> None:
        sent.append((statement, values))

    event.listen(engine, "before_cursor_execute", note)
    with sessions(engine)() as session:
        work(session)
    event.remove(engine, "before_cursor_execute", note)
    found: dict[str, int] = {}
    with engine.connect() as connection:
        for statement, values in sent:
            plan = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", values).scalar_one()
            for name, rows in scans(plan[0]["Plan"]):
                found[f"{name}: {statement}"] = max(rows, found.get(f"{name}: {statement}", 0))
    return found


LEASE = timedelta(seconds=20)
WORK: dict[str, Callable[[Session], object]] = {
    "batches whose lines are all answered": sweeps.finish_ready,
    "batches whose window is over": sweeps.expire_overdue,
    "batches to validate": lambda session: sweeps.pick_for_validation(session, again_seconds=10),
    "batches to write out": lambda session: sweeps.pick_for_finalizing(session, again_seconds=10),
    "due batches": sweeps.due_batches,
    "lost leases": lambda session: lost_leases.reap_expired(session, lease=LEASE),
    "chunks to wake": waiting.wake,
    "live models": fleet.live_models,
    "live workers": fleet.live_workers,
    "free slots": lambda session: fleet.hint_allowance(session, "m"),
    "the files of one batch": lambda session: deletion._lock_outputs(session, "batch_3000", []),
    "metrics": metrics.read_samples,
    "the newest batches of all tenants": lambda session: listing.list_batches(session, None, BatchFilter()),
    "those before one in the middle": lambda session: listing.list_batches(
        session, None, BatchFilter(before="batch_1500")
    ),
    "what is at risk": lambda session: backlog.at_risk(session, [None]),
    "the workers of a model": fleet_overview.by_model,
}


@pytest.mark.parametrize("name", list(WORK))
def test_few_rows_are_looked_at_for(crowded: Engine, name: str) -> None:
    too_many = {where: rows for where, rows in most_read(crowded, WORK[name]).items() if rows > FEW}
    assert too_many == {}


OF_OPEN: dict[str, Callable[[Session], object]] = {
    "the newest": lambda session: listing.list_batches(session, None, BatchFilter(shown=Shown.OPEN)),
    "what waits longest": lambda session: backlog.waiting_longest(session, [None]),
    "what is to do by class": lambda session: backlog.by_class(session, [None]),
    "who waits and who runs": shares.by_tenant,
}


@pytest.mark.parametrize("name", list(OF_OPEN))
def test_no_batch_that_has_ended_and_no_waiting_chunk_is_looked_at_for(crowded: Engine, name: str) -> None:
    """There are 201 open batches with 2,300 chunks, and 2,810 that have ended."""
    assert max(most_read(crowded, OF_OPEN[name]).values()) <= 201


def test_a_look_at_the_queue_reads_open_batches_only_and_no_decisions(crowded: Engine) -> None:
    found = most_read(crowded, lambda session: snapshot.queue_of(session, "m"))
    assert not [where for where in found if " on decision:" in where]
    assert max(rows for where, rows in found.items() if " on batch:" in where) <= 201, "there are 3,010"


# 400 batches among 4,000, each with a chunk that waits for more than the tenant has.
WAITING = """
    INSERT INTO tenant (id, name) VALUES ('tenant_1', 'one');
    INSERT INTO budget (tenant_id, limit_tokens) VALUES ('tenant_1', 10);
    INSERT INTO file (id, tenant_id, purpose, filename, size_bytes, object_key)
        VALUES ('file_1', 'tenant_1', 'batch', 'f', 1, 'o');
    INSERT INTO batch (id, tenant_id, input_file_id, endpoint, completion_window, fingerprint, model, state,
            num_requests, expires_at, waits_for_tokens)
        SELECT 'batch_' || n, 'tenant_1', 'file_1', 'e', '24h', 'f', 'm',
            CASE WHEN n <= 400 THEN 'in_progress' ELSE 'completed' END, 1, now() + interval '1 day',
            CASE WHEN n <= 400 THEN 50 END
        FROM generate_series(1, 4000) AS n;
    INSERT INTO chunk (batch_id, tenant_id, model, priority, expires_at, first_line, num_lines, num_requests,
            byte_start, byte_end, estimated_tokens, state, fence, waits_for_tokens, needed_tokens)
        SELECT id, 'tenant_1', 'm', 'normal', now(), 1, 1, 1, 0, 9, 50, 'waiting', 1, 50, 50 FROM batch
        WHERE waits_for_tokens > 0;
"""


def test_few_of_many_batches_that_wait_for_a_budget_are_looked_at(new_database: Callable[[], str]) -> None:
    engine = connect(as_superuser(new_database()))
    with engine.begin() as connection:
        for statement in WAITING.rstrip().removesuffix(";").split(";\n"):
            connection.execute(text(statement))
        connection.execute(text("ANALYZE"))
    found = most_read(engine, waiting.wake)
    engine.dispose()
    assert len(found) > 3
    assert {where: rows for where, rows in found.items() if rows > FEW} == {}


def test_counting_results_on_a_batch_follows_no_index(crowded: Engine) -> None:
    """Flushes update it all the time, so the check for answered batches must not slow each of them down."""
    with crowded.connect() as connection:
        connection.execute(text("UPDATE batch SET num_completed = num_completed + 1 WHERE id = 'batch_1'"))
        counted = "SELECT pg_stat_get_xact_tuples_hot_updated('batch'::regclass)"
        assert connection.execute(text(counted)).scalar() == 1
        connection.execute(text("UPDATE batch SET num_completed = num_requests WHERE id = 'batch_1'"))
        assert connection.execute(text("SELECT is_answered FROM batch WHERE id = 'batch_1'")).scalar()
        assert connection.execute(text(counted)).scalar() == 1, "once in its life"


NUM_FRESH = 2000
FRESH = text("""
    INSERT INTO result (batch_day, batch_id, line_no, result_no, is_error, input_tokens, cached_tokens, output_tokens,
        line)
    SELECT CAST(created_at AT TIME ZONE 'UTC' AS date), id, n, n, true, 0, 0, 0, 'x'
    FROM batch, generate_series(1, CAST(:number AS int)) AS n WHERE id = 'batch_1'
""")


@pytest.mark.parametrize(
    ("query", "values"),
    [(planned._DROP_RESULTS, {"counted": 0}), (purging._DELETE_ROWS, {})],
    ids=["what a validation left", "results that are kept no longer"],
)
def test_deleting_a_block_of_fresh_results_looks_at_each_a_few_times(
    crowded: Engine, query: Any, values: dict[str, Any]
) -> None:
    """Without statistics a join of the block with the table read every row for every row."""
    with crowded.connect() as connection:
        connection.execute(text("SET LOCAL timezone = 'UTC'"))
        connection.execute(FRESH, {"number": NUM_FRESH})
        day = connection.scalar(text("SELECT batch_day FROM result LIMIT 1"))
        values = values | {"batch_id": "batch_1", "day": day, "limit": NUM_FRESH}
        explained = connection.scalar(text(f"EXPLAIN (ANALYZE, FORMAT JSON) {query.text}"), values)
        looked_at = sum(rows for _, rows in scans(explained[0]["Plan"]))
        left = connection.scalar(text("SELECT count(*) FROM result"))
        connection.rollback()
    assert left == 0
    assert looked_at <= 4 * NUM_FRESH
