"""Tests of work on documents in sums of usage: it counts no lines and has no model."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy.orm import Session

from jobs.accounts.usage import Usage, parse_group_by, period, read_usage
from jobs.lines.document_bodies import PREPARE_MODEL
from jobs.tables import Ledger, Tenant


@pytest.fixture
def batch_ids(session: Session, tenant: Tenant, make_batch: Callable[..., Any]) -> dict[str, str]:
    """Two batches by kind: 5 answered lines, and 7 documents that were read."""
    ids: dict[str, str] = {}
    for number, (model, num_results, tokens) in enumerate((("m", 5, 10), (PREPARE_MODEL, 7, 0))):
        ids[model] = make_batch(state="completed").id
        session.add(
            Ledger(
                tenant_id=tenant.id, batch_id=ids[model], chunk_id=number, fence=1, flush_no=0, model=model,
                num_results=num_results, input_tokens=tokens, cached_tokens=0, output_tokens=tokens, cost_picos=tokens,
                worker_microseconds=1, num_truncated=0, created_at=datetime.now(UTC), priority="normal",
                input_price_picos=1, output_price_picos=0,
            )
        )  # fmt: skip
    session.commit()
    return ids


def test_documents_are_counted_beside_the_lines(session: Session, tenant: Tenant, batch_ids: dict[str, str]) -> None:
    [row] = read_usage(session, tenant.id, period(None, None), group_by=parse_group_by("day")).data
    assert (row.num_results, row.num_document_steps, row.input_tokens) == (5, 7, 10)


@pytest.mark.parametrize("limit", [1, 1000])
def test_documents_have_a_row_of_their_own_and_no_model(
    session: Session, tenant: Tenant, batch_ids: dict[str, str], limit: int
) -> None:
    found: list[Usage] = []
    page: str | None = None
    while not found or page is not None:
        asked = read_usage(
            session, tenant.id, period(None, None), group_by=parse_group_by("model"), page=page, limit=limit
        )
        found += asked.data
        page = asked.next_page
    assert [(row.model, row.num_results, row.num_document_steps) for row in found] == [(None, 0, 7), ("m", 5, 0)]


def test_a_batch_of_documents_has_no_line(session: Session, tenant: Tenant, batch_ids: dict[str, str]) -> None:
    rows = read_usage(session, tenant.id, period(None, None), group_by=parse_group_by("batch")).data
    found = {row.batch_id: (row.num_results, row.num_document_steps) for row in rows}
    assert found == {batch_ids["m"]: (5, 0), batch_ids[PREPARE_MODEL]: (0, 7)}
