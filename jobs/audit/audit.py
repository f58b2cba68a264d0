"""Verify on live data that nothing is missing, repeated or billed twice; report violations in words and numbers.

Reads only, in one snapshot, so that concurrent work causes no false findings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from jobs.accounts.bills import DUE_PICOS
from jobs.audit import budgets, stored_files
from jobs.audit.findings import ARE_RESULTS_GONE, IN_SCOPE, IS_ASKED, IS_DAY_DROPPED, Finding
from jobs.chunks import unbilled
from jobs.chunks.unbilled import Unbilled
from jobs.counted import counted
from jobs.errors import NotFoundError
from jobs.partitions import partition_days
from jobs.states import LIVE_BATCH_STATES, TERMINAL_BATCH_STATES, BatchState
from jobs.storage import Storage
from jobs.tables import Batch


def audit(session: Session, *, batch_id: str | None = None, storage: Storage | None = None) -> list[Finding]:
    """Check one batch or all of them, and with the latter the budgets; with `storage`, read and count output files, and
    look for the inputs of live batches.

    The session must be fresh: its transaction becomes a REPEATABLE READ snapshot. Results that were deleted, or whose
    retention has ended, are not reported as missing: the batch's counters replace them, and its bill is compared with
    those. Raises NotFoundError where there is no such batch.
    """
    session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
    if batch_id is not None and session.get(Batch, batch_id) is None:
        raise NotFoundError(f"No batch found with id {batch_id!r}.", param="batch_id")
    return list(_findings(session, batch_id, storage))


def _findings(session: Session, batch_id: str | None, storage: Storage | None) -> Iterator[Finding]:
    live = [state.value for state in LIVE_BATCH_STATES]
    scope = {"batch_id": batch_id, "days": partition_days(session), "live": live}
    # first: the store is not part of the snapshot, and a batch that has ended since needs no input
    if storage is not None:
        yield from stored_files.inputs(session, scope, storage)
    for row in session.execute(_BATCHES, scope):
        for message in (*_lines(row), *_counters(row), *_ledger(row), *_cover(row), *_ending(row)):
            yield Finding(subject=row.id, message=message)
    for row in session.execute(_REPEATED, scope):
        message = f"line {row.line_no + 1} has {counted(row.num_results, 'result')} filed under {row.num_days} days"
        yield Finding(subject=row.batch_id, message=message)
    for answer in unbilled.find(session, batch_id=batch_id, days=partition_days(session)):
        yield Finding(subject=answer.batch_id, message=_unbilled(answer))
    for row in session.execute(_DONE_CHUNKS, scope):
        requests = counted(row.num_requests, "request")
        message = f"chunk {row.id} is done with {counted(row.num_results, 'result')} for {requests}"
        yield Finding(subject=row.batch_id, message=message)
    for row in session.execute(_OVERLAPS, scope):
        message = f"chunk {row.id} begins at line {row.first_line + 1}, which an earlier chunk covers already"
        yield Finding(subject=row.batch_id, message=message)
    if storage is not None:
        yield from stored_files.files(session, scope, storage)
    if batch_id is None:
        yield from budgets.token_budgets(session)
        yield from budgets.window_budgets(session)


def _unbilled(answer: Unbilled) -> str:
    why = "is a copy of no line"
    if answer.original is not None:
        why = f"is a copy of line {answer.original + 1}, which has no billed answer, nor has another copy of it"
    return f"line {answer.line_no + 1} has an answer that is not billed, and {why}"


def _lines(row: Row[Any]) -> Iterator[str]:
    if row.is_day_dropped:  # its lines were reported while they were there
        return
    is_written = row.state in {BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED}
    if is_written and row.num_results < row.num_requests:
        yield (
            f"{row.num_requests - row.num_results} of {row.num_requests} lines have no result "
            f"and the batch is {row.state}"
        )
    if row.num_results > row.num_requests:
        yield f"there are {row.num_results} results for {row.num_requests} lines"
    if row.last_result_no != row.num_results:
        yield f"the newest of {row.num_results} results has number {row.last_result_no}: numbers must have no gaps"


def _counters(row: Row[Any]) -> Iterator[str]:
    for name in ("num_completed", "num_failed", "input_tokens", "cached_tokens", "output_tokens"):
        counted_value, results_value = getattr(row, name), getattr(row, f"result_{name}")
        if counted_value != results_value:
            yield f"the batch counts {name} {counted_value} and its results give {results_value}"


def _ledger(row: Row[Any]) -> Iterator[str]:
    for name in ("input_tokens", "cached_tokens", "output_tokens"):
        billed, results_value = getattr(row, f"ledger_{name}"), getattr(row, f"result_{name}")
        if billed != results_value:
            yield f"the ledger has {name} {billed} and the results give {results_value}"
    for name in ("worker_microseconds", "reading_microseconds", "reasoning_tokens"):
        billed, counted_value = getattr(row, f"ledger_{name}"), getattr(row, name)
        if billed != counted_value:
            yield f"the ledger has {name} {billed} and the batch {counted_value}"
    if row.ledger_cost_picos != row.cost_picos:
        yield f"the ledger has cost_picos {row.ledger_cost_picos} and the batch {row.cost_picos}"
    if row.num_mispriced:
        yield (
            f"{row.num_mispriced} ledger entries have cost_picos {row.mispriced_cost_picos} and their tokens at their "
            f"prices give {row.mispriced_due_picos}"
        )
    if row.ledger_num_results > row.num_results:
        yield f"the ledger bills {counted(row.ledger_num_results, 'result')} and there are {row.num_results}"


def _cover(row: Row[Any]) -> Iterator[str]:
    if row.covered_tokens != row.chunk_covered_tokens:
        yield f"the batch covers {counted(row.covered_tokens, 'token')} and its chunks cover {row.chunk_covered_tokens}"
    if row.covered_tokens > row.reserved_tokens:
        yield f"the batch covers {counted(row.covered_tokens, 'token')} and reserves {row.reserved_tokens}"


def _ending(row: Row[Any]) -> Iterator[str]:
    if BatchState(row.state) not in TERMINAL_BATCH_STATES:
        return
    if row.reserved_tokens:
        yield f"the batch is {row.state} and still reserves {counted(row.reserved_tokens, 'token')}"
    if row.num_open_chunks:
        yield f"the batch is {row.state} and {row.num_open_chunks} of its chunks are open"


_BATCHES = text(f"""
    WITH results AS (
        SELECT result.batch_id, count(*) AS num_results, max(result_no) AS last_result_no,
            count(*) FILTER (WHERE NOT is_error) AS num_completed, count(*) FILTER (WHERE is_error) AS num_failed,
            sum(result.input_tokens) AS input_tokens, sum(result.cached_tokens) AS cached_tokens,
            sum(result.output_tokens) AS output_tokens
        FROM result JOIN batch ON batch.id = result.batch_id WHERE {IS_ASKED} AND NOT {ARE_RESULTS_GONE}
            -- But for what a validation has written that has not ended well, or not yet.
            AND NOT (
                batch.in_progress_at IS NULL AND batch.state = ANY(:live)
                AND result.result_no > batch.num_completed + batch.num_failed
            )
        GROUP BY result.batch_id
        UNION ALL
        -- Gone on purpose: what they were is what the batch counted.
        SELECT id, num_completed + num_failed, num_completed + num_failed, num_completed, num_failed,
            input_tokens, cached_tokens, output_tokens
        FROM batch WHERE {IS_ASKED} AND {ARE_RESULTS_GONE}
    ), entries AS (
        SELECT batch_id, sum(num_results) AS num_results, sum(input_tokens) AS input_tokens,
            sum(cached_tokens) AS cached_tokens, sum(output_tokens) AS output_tokens,
            sum(worker_microseconds) AS worker_microseconds, sum(reading_microseconds) AS reading_microseconds,
            sum(reasoning_tokens) AS reasoning_tokens,
            sum(cost_picos) AS cost_picos,
            count(*) FILTER (WHERE is_mispriced) AS num_mispriced,
            sum(cost_picos) FILTER (WHERE is_mispriced) AS mispriced_cost_picos,
            sum(due_picos) FILTER (WHERE is_mispriced) AS mispriced_due_picos
        FROM (
            SELECT *, cost_picos <> due_picos AS is_mispriced FROM ledger CROSS JOIN LATERAL (
                SELECT {DUE_PICOS} AS due_picos
            ) AS due
            WHERE CAST(:batch_id AS text) IS NULL OR batch_id = :batch_id
        ) AS entry GROUP BY batch_id
    ), open AS (
        SELECT batch_id, count(*) AS num_chunks FROM chunk
        WHERE state IN ('ready', 'leased', 'waiting', 'deferred') GROUP BY batch_id
    ), covers AS (
        SELECT batch_id, sum(covered_tokens) AS tokens FROM chunk WHERE covered_tokens > 0 GROUP BY batch_id
    )
    SELECT batch.id, batch.state, batch.num_requests, batch.num_completed, batch.num_failed, batch.input_tokens,
        batch.cached_tokens, batch.output_tokens, batch.reserved_tokens, batch.covered_tokens,
        batch.worker_microseconds, coalesce(entries.worker_microseconds, 0) AS ledger_worker_microseconds,
        batch.reading_microseconds, coalesce(entries.reading_microseconds, 0) AS ledger_reading_microseconds,
        batch.reasoning_tokens, coalesce(entries.reasoning_tokens, 0) AS ledger_reasoning_tokens,
        coalesce(covers.tokens, 0) AS chunk_covered_tokens,
        batch.cost_picos,
        coalesce(results.num_results, 0) AS num_results, coalesce(results.last_result_no, 0) AS last_result_no,
        coalesce(results.num_completed, 0) AS result_num_completed,
        coalesce(results.num_failed, 0) AS result_num_failed,
        coalesce(results.input_tokens, 0) AS result_input_tokens,
        coalesce(results.cached_tokens, 0) AS result_cached_tokens,
        coalesce(results.output_tokens, 0) AS result_output_tokens,
        coalesce(entries.num_results, 0) AS ledger_num_results,
        coalesce(entries.input_tokens, 0) AS ledger_input_tokens,
        coalesce(entries.cached_tokens, 0) AS ledger_cached_tokens,
        coalesce(entries.output_tokens, 0) AS ledger_output_tokens,
        coalesce(entries.cost_picos, 0) AS ledger_cost_picos,
        coalesce(entries.num_mispriced, 0) AS num_mispriced, entries.mispriced_cost_picos, entries.mispriced_due_picos,
        coalesce(open.num_chunks, 0) AS num_open_chunks, {IS_DAY_DROPPED} AS is_day_dropped
    FROM batch
        LEFT JOIN results ON results.batch_id = batch.id
        LEFT JOIN entries ON entries.batch_id = batch.id
        LEFT JOIN open ON open.batch_id = batch.id
        LEFT JOIN covers ON covers.batch_id = batch.id
    WHERE {IS_ASKED}
    ORDER BY batch.id
""")

# Within a day the primary key forbids it; the key cannot cover several days.
_REPEATED = text(f"""
    SELECT result.batch_id, result.line_no, count(*) AS num_results, count(DISTINCT result.batch_day) AS num_days
    FROM result JOIN batch ON batch.id = result.batch_id
    WHERE {IN_SCOPE} AND result.batch_id IN (
        SELECT DISTINCT stray.batch_id FROM result AS stray JOIN batch AS owner ON owner.id = stray.batch_id
        WHERE stray.batch_day <> CAST(owner.created_at AT TIME ZONE 'UTC' AS date)
    )
    GROUP BY result.batch_id, result.line_no HAVING count(*) > 1 ORDER BY result.batch_id, result.line_no
""")

_DONE_CHUNKS = text(f"""
    SELECT chunk.id, chunk.batch_id, chunk.num_requests, count(result.line_no) AS num_results
    FROM chunk JOIN batch ON batch.id = chunk.batch_id
        LEFT JOIN result ON result.batch_day = CAST(batch.created_at AT TIME ZONE 'UTC' AS date)
            AND result.batch_id = chunk.batch_id
            AND result.line_no >= chunk.first_line AND result.line_no < chunk.first_line + chunk.num_lines
    WHERE {IN_SCOPE} AND chunk.state = 'done' AND batch.results_deleted_at IS NULL
    GROUP BY chunk.id HAVING count(result.line_no) <> chunk.num_requests ORDER BY chunk.id
""")

_OVERLAPS = text(f"""
    SELECT id, batch_id, first_line FROM (
        SELECT chunk.id, chunk.batch_id, chunk.first_line,
            max(chunk.first_line + chunk.num_lines) OVER (
                PARTITION BY chunk.batch_id ORDER BY chunk.first_line, chunk.id
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS covered
        FROM chunk JOIN batch ON batch.id = chunk.batch_id
        WHERE {IN_SCOPE} AND chunk.state NOT IN ('planned', 'split')
    ) AS placed WHERE first_line < covered ORDER BY id
""")
