"""Insert the final results of lines and count them on their batch, exactly once each, in the caller's transaction.

The only writer of `result` rows. Bills nothing: ledger and budget belong to `jobs.chunks.leasing.flush`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import psycopg
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.accounts.prices import Prices
from jobs.partitions import batch_day
from jobs.tables import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class LineResult:
    """The final answer of one line."""

    line_no: int
    line: bytes
    """The complete line of the output or error file, without newline."""
    status_code: int | None  # None: no response, an error only
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    """Tokens of thoughts among the output's."""
    reading_microseconds: int = 0
    """Time that document readers worked at the line."""
    is_truncated: bool = False
    """Whether an answer of the line was cut at its token limit: finish_reason `length`."""

    @property
    def is_error(self) -> bool:
        """Return whether the line belongs to the error file."""
        return self.status_code is None or self.status_code >= 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Wasted:
    """Tokens of a server's answers that were thrown away: paid by the operator, billed to nobody."""

    input_tokens: int = 0
    output_tokens: int = 0

    def __bool__(self) -> bool:
        return bool(self.input_tokens or self.output_tokens)

    def __add__(self, other: Wasted) -> Wasted:
        return Wasted(
            input_tokens=self.input_tokens + other.input_tokens, output_tokens=self.output_tokens + other.output_tokens
        )


NOTHING_WASTED = Wasted()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Results actually inserted, under the lock of their batch."""

    num_completed: int
    num_failed: int
    num_truncated: int
    """Among the completed ones."""
    num_computed: int
    """Results that used tokens: neither refused lines nor copies of identical ones."""
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    reading_microseconds: int
    cost_picos: int

    @property
    def num_results(self) -> int:
        return self.num_completed + self.num_failed


def record(session: Session, batch_id: str, results: Sequence[LineResult]) -> Recorded:
    """Insert unbilled results of lines that have none yet and add them to the batch's counters; locks its row first."""
    locked = session.execute(_LOCK, {"batch_id": batch_id}).one()
    recorded = insert(
        session, batch_id, results, created_at=locked.created_at, num_before=locked.num_results, prices=Prices()
    )
    if recorded.num_results:
        session.execute(_COUNT, {"batch_id": batch_id, "worker_microseconds": 0} | asdict(recorded))
    return recorded


def insert(
    session: Session,
    batch_id: str,
    results: Sequence[LineResult],
    *,
    created_at: datetime,
    num_before: int,
    prices: Prices,
) -> Recorded:
    """Insert the results of lines that have none yet; the caller counts them with `COUNT`.

    The caller has locked the batch: under that lock the results are numbered (`result_no`: 1, 2, 3 … without gaps, in
    the order of commits), so that a reader who has seen number n never misses a smaller one.
    """
    values: dict[str, Any] = {"day": batch_day(created_at), "batch_id": batch_id, "base": num_before}
    inserted = session.execute(_INSERT, values | _columns(results)).one() if results else None
    sums = dict.fromkeys(_SUMS, 0) if inserted is None else {name: int(inserted._mapping[name]) for name in _SUMS}
    used = {name: sums[name] for name in (*_TOKENS, "reading_microseconds")}
    return Recorded(**sums, cost_picos=prices.cost_picos(**used))


def copy_errors(session: Session, batch: Batch, results: Sequence[LineResult], *, base: int) -> None:
    """Insert unbilled error results in bulk, numbered from `base` + 1; the caller counts them on the batch.

    For the only writer of a batch's results: before its first chunk exists or after its last one has ended. Raises
    sqlalchemy.exc.IntegrityError or psycopg's where a line already has a result.
    """
    day = batch_day(batch.created_at)
    rows = (
        (day, batch.id, result.line_no, base + position, result.status_code, True, 0, 0, 0, result.line)
        for position, result in enumerate(results, start=1)
    )
    copy_rows(session, _COPY_RESULTS, rows)


def copy_rows(session: Session, statement: str, rows: Iterable[Sequence[object]]) -> None:
    """Run one COPY … FROM STDIN in the session's transaction."""
    connection = session.connection().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)


_TOKENS = ("input_tokens", "cached_tokens", "output_tokens")
_COUNTED = ("reasoning_tokens", "reading_microseconds")
"""Counted on the batch and in the ledger, and not stored with a result."""
_SUMS = ("num_completed", "num_failed", "num_truncated", "num_computed", *_TOKENS, *_COUNTED)


def _columns(results: Sequence[LineResult]) -> dict[str, Any]:
    stored = ("line_no", "status_code", "is_error", "input_tokens", "cached_tokens", "output_tokens")
    names = (*stored, "is_truncated", *_COUNTED)
    lines = {"line": [result.line for result in results]}
    return lines | {name: _array(getattr(result, name) for result in results) for name in names}


def _array(values: Iterable[int | None]) -> str:
    """Format an array as a Postgres literal: the driver inspects each element several times."""
    return f"{{{','.join('NULL' if value is None else str(value) for value in values)}}}"


_COPY_RESULTS = (
    "COPY result (batch_day, batch_id, line_no, result_no, status_code, is_error, input_tokens, cached_tokens,"
    " output_tokens, line) FROM STDIN"
)

_LOCK = text("""
    SELECT created_at, num_completed + num_failed AS num_results FROM batch WHERE id = :batch_id FOR NO KEY UPDATE
""")

# NOT EXISTS keeps the numbers dense; ON CONFLICT is the guarantee, and names its constraint so that it can never hide a
# number issued twice.
_INSERT = text("""
    WITH given AS (
        SELECT * FROM unnest(
            CAST(:line_no AS bigint[]), CAST(:status_code AS smallint[]), CAST(:is_error AS boolean[]),
            CAST(:input_tokens AS bigint[]), CAST(:cached_tokens AS bigint[]), CAST(:output_tokens AS bigint[]),
            CAST(:line AS bytea[]), CAST(:is_truncated AS boolean[]), CAST(:reasoning_tokens AS bigint[]),
            CAST(:reading_microseconds AS bigint[])
        ) AS row (line_no, status_code, is_error, input_tokens, cached_tokens, output_tokens, line, is_truncated,
            reasoning_tokens, reading_microseconds)
    ), missing AS (
        SELECT given.*, row_number() OVER (ORDER BY given.line_no) AS position FROM given
        WHERE NOT EXISTS (
            SELECT FROM result
            WHERE result.batch_day = :day AND result.batch_id = :batch_id AND result.line_no = given.line_no
        )
    ), inserted AS (
        INSERT INTO result (batch_day, batch_id, line_no, result_no, status_code, is_error,
            input_tokens, cached_tokens, output_tokens, line)
        SELECT :day, :batch_id, line_no, :base + position, status_code, is_error,
            input_tokens, cached_tokens, output_tokens, line
        FROM missing
        ON CONFLICT (batch_day, batch_id, line_no) DO NOTHING
        RETURNING line_no, is_error, input_tokens, cached_tokens, output_tokens
    )
    SELECT count(*) FILTER (WHERE NOT is_error) AS num_completed, count(*) FILTER (WHERE is_error) AS num_failed,
        count(*) FILTER (WHERE NOT is_error AND line_no = ANY(
            SELECT line_no FROM given WHERE given.is_truncated
        )) AS num_truncated,
        count(*) FILTER (WHERE input_tokens + output_tokens > 0) AS num_computed,
        coalesce(sum(input_tokens), 0) AS input_tokens, coalesce(sum(cached_tokens), 0) AS cached_tokens,
        coalesce(sum(output_tokens), 0) AS output_tokens,
        (SELECT coalesce(sum(reasoning_tokens), 0) FROM given WHERE line_no IN (SELECT line_no FROM inserted))
            AS reasoning_tokens,
        (SELECT coalesce(sum(reading_microseconds), 0) FROM given WHERE line_no IN (SELECT line_no FROM inserted))
            AS reading_microseconds
    FROM inserted
""")

COUNT = """
    UPDATE batch SET num_completed = num_completed + :num_completed, num_failed = num_failed + :num_failed,
        num_truncated = num_truncated + :num_truncated, num_computed = num_computed + :num_computed,
        input_tokens = input_tokens + :input_tokens, cached_tokens = cached_tokens + :cached_tokens,
        output_tokens = output_tokens + :output_tokens, reasoning_tokens = reasoning_tokens + :reasoning_tokens,
        cost_picos = cost_picos + :cost_picos,
        worker_microseconds = worker_microseconds + :worker_microseconds,
        reading_microseconds = reading_microseconds + :reading_microseconds
        {more} WHERE id = :batch_id
"""
"""Adds the recorded results, and the time they took, to the counters of the batch; `more` sets further columns."""
_COUNT = text(COUNT.format(more=""))
