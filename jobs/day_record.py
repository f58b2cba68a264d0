"""Record of a time span: batches, their classes, tenants and lengths. No prompts, no answers.

Covers ended batches whose results are kept; the others are only counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from jobs.errors import InputError
from jobs.partitions import batch_day
from jobs.states import TERMINAL_BATCH_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBatch:
    """A batch that has ended."""

    tenant: str
    weight: float
    model: str
    priority: str
    arrived_at: datetime
    """When its validation was done, so that it could run."""
    deadline_at: datetime
    first_answer_at: datetime
    ended_at: datetime
    """When its last line was answered."""
    max_tokens: int
    """Mean per line, as estimated."""
    worker_seconds: float
    """Worker time used."""
    lines: list[tuple[int, int, int]]
    """Tokens of the prompt, the cached ones among them, and tokens of the answer; lines without tokens are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Facts about a span beside its batches."""

    num_workers: Mapping[str, int]
    """Workers that claimed work, by model; kept for a day."""
    num_open: int
    """Batches that have not ended."""
    num_forgotten: int
    """Batches without stored results."""


def describe(session: Session, start: datetime, end: datetime) -> Span:
    """Return what `recorded` does not cover. Raises InputError where the span ends before it begins."""
    if start >= end:
        raise InputError(f"the span begins at {start.isoformat()} and ends at {end.isoformat()}; give a later end")
    values = {"start": start, "end": end, "ended": [state.value for state in TERMINAL_BATCH_STATES]}
    counted = session.execute(_COUNTS, values).one()
    workers = session.execute(_WORKERS, values)
    num_workers = {row.model: int(row.num) for row in workers}
    return Span(num_workers=num_workers, num_open=counted.num_open, num_forgotten=counted.num_forgotten)


def recorded(session: Session, start: datetime, end: datetime) -> Iterator[RecordedBatch]:
    """Yield the batches that arrived from `start` on and before `end`, in order of arrival."""
    values = {"start": start, "end": end, "ended": [state.value for state in TERMINAL_BATCH_STATES]}
    for batch in session.execute(_BATCHES, values).all():
        lines = session.execute(_LINES, {"day": batch_day(batch.created_at), "batch_id": batch.id}).all()
        if used := [line for line in lines if line.input_tokens]:
            yield _recorded(batch, used)


def _recorded(batch: Row[Any], lines: list[Row[Any]]) -> RecordedBatch:
    return RecordedBatch(
        tenant=batch.tenant,
        weight=batch.weight,
        model=batch.model,
        priority=batch.priority,
        arrived_at=batch.in_progress_at,
        deadline_at=batch.expires_at,
        first_answer_at=min(line.created_at for line in lines),
        ended_at=max(line.created_at for line in lines),
        max_tokens=-(-(batch.estimated_output_tokens or 0) // (batch.num_requests or 1)),
        worker_seconds=batch.worker_microseconds / 1e6,
        lines=[(line.input_tokens, line.cached_tokens, line.output_tokens) for line in lines],
    )


_ARRIVED = "batch.in_progress_at >= :start AND batch.in_progress_at < :end"
_ENDED = "batch.state = ANY(:ended)"
_USED = """
    EXISTS (
        SELECT FROM result
        WHERE result.batch_day = CAST(batch.created_at AT TIME ZONE 'UTC' AS date) AND result.batch_id = batch.id
            AND result.input_tokens > 0
    )
"""
_COUNTS = text(f"""
    SELECT count(*) FILTER (WHERE NOT {_ENDED}) AS num_open,
        count(*) FILTER (WHERE {_ENDED} AND NOT {_USED}) AS num_forgotten
    FROM batch WHERE {_ARRIVED}
""")
_WORKERS = text(f"""
    SELECT batch.model, count(DISTINCT decision.subject) AS num
    FROM batch JOIN decision ON decision.batch_id = batch.id AND decision.kind = 'claimed'
    WHERE {_ARRIVED} AND {_ENDED} GROUP BY batch.model
""")
_BATCHES = text(f"""
    SELECT batch.id, batch.created_at, batch.in_progress_at, batch.expires_at, batch.model, batch.priority,
        batch.worker_microseconds, tenant.name AS tenant, tenant.weight, file.estimated_output_tokens,
        file.num_requests
    FROM batch JOIN tenant ON tenant.id = batch.tenant_id JOIN file ON file.id = batch.input_file_id
    WHERE {_ARRIVED} AND {_ENDED} ORDER BY batch.in_progress_at, batch.id
""")
_LINES = text("""
    SELECT input_tokens, cached_tokens, output_tokens, created_at FROM result
    WHERE batch_day = :day AND batch_id = :batch_id ORDER BY line_no
""")
