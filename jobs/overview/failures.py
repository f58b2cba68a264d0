"""Failures by code, each with a sample: of a batch, and of the last day's batches. Bounded in what it reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.partitions import batch_day
from jobs.tables import Batch

LOOKED_AT = 20_000
"""Latest results of one batch in which failures are counted."""
MOST_BATCHES = 20
"""Newest batches of the last day."""
LOOKED_AT_LATELY = 500
"""Latest results of each of these."""
_SAMPLE_CHARACTERS = 300
_NO_CODE = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Failed lines with the same code."""

    code: str
    num_lines: int
    num_batches: int
    batch_id: str
    """Batch of the sample."""
    custom_id: str | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LatelyFailed:
    """Failures of the last day."""

    by_code: Sequence[Failure]
    num_looked_at: int
    num_lines: int
    """Failed lines in the MOST_BATCHES newest batches."""


def of_batch(session: Session, batch: Batch) -> Sequence[Failure]:
    """Count the failed lines among a batch's latest LOOKED_AT results by code, most frequent first."""
    return _count(session, [batch], looked_at=LOOKED_AT)


def lately(session: Session, batches: Sequence[Batch]) -> LatelyFailed:
    """Count failures of batches that failed lately, newest first; for refused ones, their invalid lines."""
    failures = [*_count(session, batches, looked_at=LOOKED_AT_LATELY), *_refused(batches)]
    return LatelyFailed(
        by_code=sorted(_joined(failures), key=lambda one: (-one.num_lines, one.code)),
        num_looked_at=sum(one.num_lines for one in failures),
        num_lines=sum(batch.num_failed + len(batch.errors or ()) + batch.num_unlisted_errors for batch in batches),
    )


def _refused(batches: Sequence[Batch]) -> list[Failure]:
    """Return the errors of inputs, for each batch by code."""
    return [
        Failure(code=code, num_lines=num, num_batches=1, batch_id=batch.id, custom_id=None, message=_said(batch, code))
        for batch in batches
        for code, num in Counter(error["code"] for error in batch.errors or ()).items()
    ]


def _said(batch: Batch, code: str) -> str:
    first = next(error for error in batch.errors or () if error["code"] == code)
    return str(first["message"])[:_SAMPLE_CHARACTERS]


def _joined(failures: Sequence[Failure]) -> Sequence[Failure]:
    """Merge failures of the same code; the first has the sample."""
    by_code: dict[str, Failure] = {}
    for one in failures:
        first = by_code.get(one.code)
        by_code[one.code] = (
            one
            if first is None
            else replace(
                first, num_lines=first.num_lines + one.num_lines, num_batches=first.num_batches + one.num_batches
            )
        )
    return list(by_code.values())


def _count(session: Session, batches: Sequence[Batch], *, looked_at: int) -> Sequence[Failure]:
    readable = [batch for batch in batches if batch.num_failed and batch.results_deleted_at is None]
    if not readable:
        return []
    values = {
        "days": [batch_day(batch.created_at) for batch in readable],
        "ids": [batch.id for batch in readable],
        "after": [max(0, batch.num_completed + batch.num_failed - looked_at) for batch in readable],
        "characters": _SAMPLE_CHARACTERS,
        "no_code": _NO_CODE,
        "nul": r"\u0000",  # as JSON writes the one character that jsonb refuses
        "shown": r"\ufffd",
    }
    return [Failure(**row) for row in session.execute(_COUNT, values).mappings()]


# The reason is in `error`, or in the body of the response.
_COUNT = text("""
    WITH failed AS (
        SELECT batch_id, position, line ->> 'custom_id' AS custom_id,
            coalesce(nullif(line #> '{error}', 'null'), line #> '{response,body,error}') AS error
        FROM (
            SELECT look.batch_id, look.position,
                CAST(replace(convert_from(found.line, 'UTF8'), :nul, :shown) AS jsonb) AS line
            FROM unnest(CAST(:days AS date[]), CAST(:ids AS text[]), CAST(:after AS bigint[]))
                WITH ORDINALITY AS look (day, batch_id, after, position)
            CROSS JOIN LATERAL (
                SELECT line FROM result
                WHERE batch_day = look.day AND batch_id = look.batch_id AND result_no > look.after AND is_error
            ) AS found
        ) AS parsed
    ), coded AS (
        SELECT coalesce(error ->> 'code', :no_code) AS code, batch_id, custom_id, error ->> 'message' AS message,
            row_number() OVER (PARTITION BY error ->> 'code' ORDER BY position, custom_id) AS place
        FROM failed
    )
    SELECT code, count(*) AS num_lines, count(DISTINCT batch_id) AS num_batches,
        max(batch_id) FILTER (WHERE place = 1) AS batch_id, max(custom_id) FILTER (WHERE place = 1) AS custom_id,
        left(coalesce(max(message) FILTER (WHERE place = 1), ''), :characters) AS message
    FROM coded GROUP BY code ORDER BY num_lines DESC, code
""")
