"""Unbilled answers that should have been billed: the audit's check of copies. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.database import stream
from jobs.lines.document_bodies import PREPARE_MODEL

_ROWS_A_FETCH = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbilled:
    """An answer without tokens that is no copy, or a copy of an original that was never computed."""

    batch_id: str
    line_no: int
    original: int | None
    """The line that it is a copy of; None where it is no copy."""


def find(session: Session, *, batch_id: str | None, days: Sequence[date]) -> Iterator[Unbilled]:
    """Yield the unbilled answers of one batch or of all, with results in the partitions of `days` and not deleted.

    A copy may have run itself and then stands for the others of its original: one billed copy is enough. Chunks of
    documents have no tokens, and are left out.
    """
    values = {"batch_id": batch_id, "days": list(days), "prepare_model": PREPARE_MODEL}
    with stream(session, _FIND, values, num_rows=_ROWS_A_FETCH) as rows:
        for row in rows:
            yield Unbilled(**row._asdict())


_FIND = text("""
    WITH asked AS (
        SELECT id, CAST(created_at AT TIME ZONE 'UTC' AS date) AS day FROM batch
        WHERE (CAST(:batch_id AS text) IS NULL OR id = :batch_id) AND results_deleted_at IS NULL
            AND model IS DISTINCT FROM :prepare_model
            AND CAST(created_at AT TIME ZONE 'UTC' AS date) = ANY(CAST(:days AS date[]))
    ), answers AS (
        SELECT batch_id, line_no, input_tokens + output_tokens > 0 AS is_billed
        FROM result JOIN asked ON asked.id = result.batch_id AND asked.day = result.batch_day
        WHERE NOT is_error
    ), copies AS (  -- a bisected chunk and its children name the same ones
        SELECT DISTINCT batch_id, copies[at] AS line_no, copies[at + 1] AS original
        FROM chunk JOIN asked ON asked.id = chunk.batch_id
            CROSS JOIN LATERAL generate_series(1, cardinality(copies), 2) AS at
    ), computed AS (
        SELECT batch_id, original FROM copies JOIN answers USING (batch_id, line_no) WHERE is_billed
        UNION
        SELECT copies.batch_id, original FROM copies
            JOIN answers ON answers.batch_id = copies.batch_id AND answers.line_no = original
        WHERE is_billed
    )
    SELECT batch_id, line_no, copies.original
    FROM answers LEFT JOIN copies USING (batch_id, line_no) LEFT JOIN computed USING (batch_id, original)
    WHERE NOT is_billed AND computed.original IS NULL
    ORDER BY batch_id, line_no
""")
