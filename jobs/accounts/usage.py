"""Usage of a tenant: sums of its ledger by day, model, key and batch, a page at a time.

Days are UTC, as in the rolled-up entries of `jobs.retention.history`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Any

import orjson
from sqlalchemy import Row, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from jobs.errors import InputError, TooLargeError
from jobs.lines.document_bodies import PREPARE_MODEL
from jobs.tables import ApiKey

MAX_DAYS = 366
MAX_PAGE = 10_000
DEFAULT_DAYS = 30
_RESULTS = "coalesce(sum(ledger.num_results) FILTER (WHERE ledger.model {} :prepare), 0)"
_SECONDS = 20
"""Time limit of the sum: an entry is a flush, and a busy tenant has some a second."""
_CANCELED = "57014"


class GroupBy(StrEnum):
    """What to group by; the names of the query's columns."""

    DAY = "day"
    MODEL = "model"
    KEY = "key"
    BATCH = "batch"


_COLUMNS = {
    GroupBy.DAY: "to_char(ledger.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
    GroupBy.MODEL: "ledger.model",
    GroupBy.KEY: "coalesce(batch.api_key_id, '')",
    GroupBy.BATCH: "ledger.batch_id",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Whole UTC days, both inclusive."""

    since: date
    until: date


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Sums of ledger entries. Columns that are not grouped by are None."""

    day: str | None
    """As YYYY-MM-DD."""
    model: str | None
    """None also for work on documents."""
    key_id: str | None
    """None also for batches submitted without a key."""
    key_hint: str | None
    """The key's first characters."""
    batch_id: str | None
    num_results: int
    """Of lines answered by models."""
    num_document_steps: int
    """Results of lines that read, cut, search or ground documents, without a model."""
    num_truncated: int
    """Results with an answer cut at a token limit."""
    input_tokens: int
    """Including cached ones."""
    cached_tokens: int
    output_tokens: int
    """Including those of thoughts."""
    reasoning_tokens: int
    cost_picos: int
    worker_microseconds: int
    reading_microseconds: int
    """Processor time of document readers."""
    reading_picos: int
    """Part of the cost for this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePage:
    """Some sums, in the order of their groups."""

    data: Sequence[Usage]
    next_page: str | None
    """The cursor of the next page; None on the last one."""


def parse_group_by(text: str) -> tuple[GroupBy, ...]:
    """Parse comma-separated names, keeping their order. Raises InputError."""
    names = [name.strip() for name in text.split(",")]
    if not set(names) <= set(GroupBy) or len(set(names)) < len(names):
        raise InputError(
            f"group_by is {text[:80]!r}; give one or more of {', '.join(GroupBy)} with commas between them, each once",
            param="group_by",
            code="invalid_value",
        )
    return tuple(GroupBy(name) for name in names)


def period(since: date | None, until: date | None, *, today: date | None = None) -> Period:
    """Return the requested days; without a beginning the last 30. Raises InputError for none, or too many."""
    last = until or today or datetime.now(UTC).date()
    try:
        first = since or last - timedelta(days=DEFAULT_DAYS - 1)
        num_days = (last + timedelta(days=1) - first).days
    except OverflowError:
        num_days = 0
    if not 1 <= num_days <= MAX_DAYS:
        raise InputError(
            f"the period is {since or '…'} to {last}; give a `since` that is not after `until`, and at most "
            f"{MAX_DAYS} days, both included",
            param="since",
            code="invalid_value",
        )
    return Period(since=first, until=last)


def read_usage(
    session: Session,
    tenant_id: str,
    days: Period,
    *,
    group_by: Sequence[GroupBy],
    page: str | None = None,
    limit: int = 1000,
) -> UsagePage:
    """Return a page of a tenant's sums. Raises InputError for an unknown `page`, TooLargeError for a slow sum."""
    assert group_by
    assert 1 <= limit <= MAX_PAGE
    values = {
        "tenant_id": tenant_id,
        "since": days.since,
        "until": days.until,
        "prepare": PREPARE_MODEL,
        "limit": limit + 1,
        **{f"after_{name}": value for name, value in zip(group_by, _position(page, group_by), strict=False)},
    }
    rows = _bounded(session, _query(group_by, is_first=page is None), values)
    more = len(rows) > limit
    rows = rows[:limit]
    hints = _hints(session, {row.key for row in rows} if GroupBy.KEY in group_by else set())
    return UsagePage(
        data=[_usage(row, group_by, hints) for row in rows],
        next_page=_token([getattr(rows[-1], name) for name in group_by]) if more else None,
    )


def _usage(row: Row[Any], group_by: Sequence[GroupBy], hints: dict[str, str]) -> Usage:
    names: dict[GroupBy, str | None] = {name: getattr(row, name) or None for name in group_by}
    key_id, model = names.get(GroupBy.KEY), names.get(GroupBy.MODEL)
    return Usage(
        day=names.get(GroupBy.DAY),
        model=None if model == PREPARE_MODEL else model,
        key_id=key_id,
        key_hint=hints.get(key_id or ""),
        batch_id=names.get(GroupBy.BATCH),
        num_results=int(row.num_results),
        num_document_steps=int(row.num_document_steps),
        num_truncated=int(row.num_truncated),
        input_tokens=int(row.input_tokens),
        cached_tokens=int(row.cached_tokens),
        output_tokens=int(row.output_tokens),
        reasoning_tokens=int(row.reasoning_tokens),
        cost_picos=int(row.cost_picos),
        worker_microseconds=int(row.worker_microseconds),
        reading_microseconds=int(row.reading_microseconds),
        reading_picos=int(row.reading_picos),
    )


def _hints(session: Session, key_ids: set[str]) -> dict[str, str]:
    if not key_ids:
        return {}
    rows = session.query(ApiKey.id, ApiKey.hint).where(ApiKey.id.in_(key_ids)).all()
    return {row.id: row.hint for row in rows}


def _query(group_by: Sequence[GroupBy], *, is_first: bool) -> str:
    # "C": the same order in every database, so that a page's end is the next one's beginning.
    columns = {name: f'{_COLUMNS[name]} COLLATE "C"' for name in group_by}
    after = ", ".join(f":after_{name}" for name in group_by)
    return f"""
        SELECT {", ".join(f"{column} AS {name}" for name, column in columns.items())},
            {_RESULTS.format("<>")} AS num_results, {_RESULTS.format("=")} AS num_document_steps,
            sum(ledger.input_tokens) AS input_tokens,
            sum(ledger.cached_tokens) AS cached_tokens, sum(ledger.output_tokens) AS output_tokens,
            sum(ledger.cost_picos) AS cost_picos,
            sum(ledger.worker_microseconds) AS worker_microseconds,
            sum(ledger.reading_microseconds) AS reading_microseconds,
            sum(CAST(ledger.reading_microseconds AS numeric) * ledger.reading_price_picos) AS reading_picos,
            sum(ledger.num_truncated) AS num_truncated, sum(ledger.reasoning_tokens) AS reasoning_tokens
        FROM ledger {"JOIN batch ON batch.id = ledger.batch_id" if GroupBy.KEY in group_by else ""}
        WHERE ledger.tenant_id = :tenant_id
            AND ledger.created_at >= CAST(:since AS date)::timestamp AT TIME ZONE 'UTC'
            AND ledger.created_at < (CAST(:until AS date) + 1)::timestamp AT TIME ZONE 'UTC'
            {"" if is_first else f"AND ({', '.join(columns.values())}) > ({after})"}
        GROUP BY {", ".join(columns.values())} ORDER BY {", ".join(columns.values())} LIMIT :limit
    """


def _bounded(session: Session, query: str, values: dict[str, Any]) -> Sequence[Row[Any]]:
    session.execute(text(f"SET LOCAL statement_timeout = '{_SECONDS}s'"))
    try:
        return session.execute(text(query), values).all()
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != _CANCELED:
            raise
        raise TooLargeError(
            f"these {(values['until'] - values['since']).days + 1} days take more than {_SECONDS} s to add up; "
            "ask for fewer of them at a time",
            param="since",
        ) from None


def _token(position: Sequence[str]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(position)).decode()


def _position(page: str | None, group_by: Sequence[GroupBy]) -> list[str]:
    if page is None:
        return []
    try:
        position = orjson.loads(base64.urlsafe_b64decode(page))
    except (ValueError, binascii.Error):
        position = None
    is_one = isinstance(position, list) and all(isinstance(part, str) and "\x00" not in part for part in position)
    if not is_one or len(position) != len(group_by):
        raise InputError(
            "page is no `next_page` of this query; give the one that the page before answered, and the same group_by",
            param="page",
            code="invalid_value",
        )
    return list(position)
