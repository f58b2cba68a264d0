"""Roll up batches that ended long ago: delete their chunks, merge their ledger entries into one a day.

Only entries that can no longer change are rolled up: a flush needs its chunk, and the chunks are deleted first. Sums
stay exact by batch, model and prices, so bills and audit are unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts.bills import DUE_PICOS
from jobs.database import transaction
from jobs.engines import served
from jobs.partitions import partition_days
from jobs.states import TERMINAL_BATCH_STATES

WORKERS_LEFT = timedelta(hours=1)
WORKERS_KEPT = timedelta(days=7)
"""A worker silent for this long counts as gone, or its row is deleted; if it returns, it registers again."""
_BATCHES = 1  # per transaction: the entries of a large one are read again for each piece of them
_ROWS = 10_000  # per transaction: chunks, and as many ledger entries


def roll_up(maker: sessionmaker[Session], *, age: timedelta) -> int:
    """Roll up batches that ended `age` ago and whose results are gone; return how many.

    Each block is its own transaction: an interrupted call is continued by the next. Concurrent calls take different
    batches.
    """
    num_rolled_up = 0
    after = (datetime.min.replace(tzinfo=UTC), "")
    while True:
        with transaction(maker) as session:
            due = _lock_due(session, age=age, after=after)
            if not due:
                return num_rolled_up
            is_done = _shorten(session, [batch.id for batch in due])
        if is_done:
            num_rolled_up += len(due)
            after = (due[-1].created_at, due[-1].id)


def forget_workers(maker: sessionmaker[Session]) -> int:
    """Delete the rows of long silent workers, and mark killed ones as stopped; return how many were deleted.

    Engines that none has served for long are deleted, too.
    """
    with transaction(maker) as session:
        session.execute(_SIGN_OFF, {"left": WORKERS_LEFT})
        num_deleted = len(session.execute(_FORGET_WORKERS, {"kept": WORKERS_KEPT}).all())
        served.forget_old(session)
        return num_deleted


def _lock_due(session: Session, *, age: timedelta, after: tuple[datetime, str]) -> Sequence[Row[Any]]:
    values = {
        "age": age,
        "ended": [state.value for state in TERMINAL_BATCH_STATES],
        "days": partition_days(session),
        "after_time": after[0],
        "after_id": after[1],
        "limit": _BATCHES,
    }
    return session.execute(_LOCK_DUE, values).all()


def _shorten(session: Session, batch_ids: Sequence[str]) -> bool:
    """Do a bounded piece of the work; return whether it was the last one."""
    values = {"batch_ids": batch_ids, "limit": _ROWS}
    for statement in (_DELETE_CHUNKS, _ROLL_UP):
        if session.scalar(statement, values) == _ROWS:
            return False
    session.execute(_NOTE, values)
    return True


_LOCK_DUE = text("""
    SELECT id, created_at FROM batch
    WHERE rolled_up_at IS NULL AND created_at <= now() - CAST(:age AS interval)
        AND (created_at, id) > (:after_time, :after_id)
        AND GREATEST(created_at, completed_at, failed_at, expired_at, cancelled_at) <= now() - CAST(:age AS interval)
        AND state = ANY(:ended)
        -- A day of UTC may lie in two of their windows: what one of them counts stays as it is.
        AND NOT EXISTS (
            SELECT FROM window_budget WHERE window_budget.tenant_id = batch.tenant_id
                AND window_end > now() AND window_start
                    <= GREATEST(batch.created_at, completed_at, failed_at, expired_at, cancelled_at)
        )
        AND (
            results_purged_at IS NOT NULL
            OR CAST(created_at AT TIME ZONE 'UTC' AS date) <> ALL(CAST(:days AS date[]))
        )
    ORDER BY created_at, id LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
""")

_DELETE_CHUNKS = text("""
    WITH gone AS (
        DELETE FROM chunk WHERE id IN (SELECT id FROM chunk WHERE batch_id = ANY(:batch_ids) LIMIT :limit) RETURNING 1
    )
    SELECT count(*) FROM gone
""")

# The first entry of a group absorbs the others and keeps its key; those of lines that left the house are groups of
# their own. An entry whose cost differs from that of its tokens stays as it is: the audit must still find it.
_ROLL_UP = text(f"""
    WITH entry AS (
        SELECT id, first_value(id) OVER (
            PARTITION BY batch_id, CAST(created_at AT TIME ZONE 'UTC' AS date), model,
                input_price_picos, cached_input_price_picos, output_price_picos, reading_price_picos, priority,
                spill_picos IS NULL
            ORDER BY id
        ) AS first_id
        FROM ledger WHERE batch_id = ANY(:batch_ids) AND cost_picos = {DUE_PICOS}
    ), following AS (
        SELECT id, first_id FROM entry WHERE id <> first_id LIMIT :limit
    ), gone AS (
        DELETE FROM ledger USING following WHERE ledger.id = following.id RETURNING following.first_id, ledger.*
    ), added AS (
        SELECT first_id, CAST(sum(num_entries) AS bigint) AS num_entries,
            CAST(sum(num_results) AS bigint) AS num_results, CAST(sum(input_tokens) AS bigint) AS input_tokens,
            CAST(sum(cached_tokens) AS bigint) AS cached_tokens, CAST(sum(output_tokens) AS bigint) AS output_tokens,
            sum(cost_picos) AS cost_picos,
            CAST(sum(worker_microseconds) AS bigint) AS worker_microseconds,
            CAST(sum(reading_microseconds) AS bigint) AS reading_microseconds,
            CAST(sum(num_truncated) AS bigint) AS num_truncated,
            CAST(sum(reasoning_tokens) AS bigint) AS reasoning_tokens,
            CAST(sum(wasted_input_tokens) AS bigint) AS wasted_input_tokens,
            CAST(sum(wasted_output_tokens) AS bigint) AS wasted_output_tokens,
            sum(spill_picos) AS spill_picos,
            count(*) AS num_gone
        FROM gone GROUP BY first_id
    ), summed AS (
        UPDATE ledger SET num_entries = ledger.num_entries + added.num_entries,
            num_results = ledger.num_results + added.num_results,
            input_tokens = ledger.input_tokens + added.input_tokens,
            cached_tokens = ledger.cached_tokens + added.cached_tokens,
            output_tokens = ledger.output_tokens + added.output_tokens,
            cost_picos = ledger.cost_picos + added.cost_picos,
            worker_microseconds = ledger.worker_microseconds + added.worker_microseconds,
            reading_microseconds = ledger.reading_microseconds + added.reading_microseconds,
            num_truncated = ledger.num_truncated + added.num_truncated,
            reasoning_tokens = ledger.reasoning_tokens + added.reasoning_tokens,
            wasted_input_tokens = ledger.wasted_input_tokens + added.wasted_input_tokens,
            wasted_output_tokens = ledger.wasted_output_tokens + added.wasted_output_tokens,
            spill_picos = ledger.spill_picos + added.spill_picos
        FROM added WHERE ledger.id = added.first_id RETURNING added.num_gone
    )
    SELECT coalesce(sum(num_gone), 0) FROM summed
""")

_NOTE = text("UPDATE batch SET rolled_up_at = now() WHERE id = ANY(:batch_ids)")

# Live ones are found by an index of those that have not stopped.
_SIGN_OFF = text("""
    UPDATE worker SET stopped_at = heartbeat_at
    WHERE stopped_at IS NULL AND heartbeat_at < clock_timestamp() - CAST(:left AS interval)
""")

_FORGET_WORKERS = text("""
    DELETE FROM worker WHERE heartbeat_at < clock_timestamp() - CAST(:kept AS interval) RETURNING id
""")
