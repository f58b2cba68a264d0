"""Tests of batches whose lines need no model: small chunks, alternating between tenants, claimed, and free."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs import served_models
from jobs.accounts import budgets, tenants
from jobs.audit.audit import audit
from jobs.batches import lifecycle
from jobs.batches.scan import PREPARE_LINES
from jobs.batches.submission import CreateBatch
from jobs.chunks import claiming, fleet, leasing, unserved
from jobs.chunks.leasing import ClaimedChunk
from jobs.errors import InputError
from jobs.lines.document_bodies import PREPARE_MODEL, READ_ENDPOINT
from jobs.settings import Settings
from jobs.states import BatchState
from jobs.storage import Storage
from jobs.tables import Batch, File, Tenant
from tests.jobs.batches.control import validate
from tests.jobs.chunks.builders import LEASE, answer, chunk_ids, claim_first, totals

Submit = Callable[..., Batch]
WORKER = "w1"


def read_lines(count: int) -> list[str]:
    return [
        json.dumps(
            {
                "custom_id": f"a{number}",
                "method": "POST",
                "url": READ_ENDPOINT,
                "body": {"model": PREPARE_MODEL, "file_id": f"file_{number}", "name": f"{number}.txt"},
            }
        )
        for number in range(count)
    ]


@pytest.fixture
def reading(session: Session, storage: Storage, settings: Settings, submit: Submit) -> Submit:
    """Submit and validate a batch that reads so many documents."""

    def reading(count: int, **columns: str) -> Batch:
        batch = submit(read_lines(count), endpoint=READ_ENDPOINT, **columns)
        assert validate(session, storage, batch.id, settings=settings) is BatchState.IN_PROGRESS
        return batch

    return reading


def test_documents_are_planned_in_small_chunks_of_the_queue_that_needs_no_model(
    session: Session, reading: Submit
) -> None:
    batch = reading(2 * PREPARE_LINES + 1)
    session.refresh(batch)
    assert batch.model == PREPARE_MODEL
    found = session.execute(text("SELECT model, num_lines, estimated_tokens FROM chunk ORDER BY first_line")).all()
    assert [tuple(row) for row in found] == [
        (PREPARE_MODEL, count, 100 * count) for count in (PREPARE_LINES, PREPARE_LINES, 1)
    ]


def finish(session: Session, claim: ClaimedChunk) -> None:
    """Answer every line of a chunk, with no token, and end it."""
    lines = range(claim.first_line, claim.first_line + claim.num_lines)
    results = [answer(claim, number, input_tokens=0, output_tokens=0) for number in lines]
    results = [replace(result, cached_tokens=0) for result in results]
    leasing.flush(session, claim, results, flush_no=0, lease=LEASE, is_last=True)
    session.commit()


def test_a_prepared_line_costs_nothing_and_has_its_entry_in_the_ledger(session: Session, reading: Submit) -> None:
    finish(session, claim_first(session, reading(2)))
    row = session.execute(text("SELECT model, num_results, input_tokens, output_tokens, cost_picos FROM ledger")).one()
    assert tuple(row) == (PREPARE_MODEL, 2, 0, 0, 0)


def test_a_tenant_whose_budget_is_used_up_still_has_its_documents_read(
    session: Session, tenant: Tenant, reading: Submit
) -> None:
    budgets.set_limit(session, tenant.id, 1)
    session.commit()
    assert not claim_first(session, reading(1)).is_limited


def test_documents_are_read_in_turns_between_tenants(session: Session, tenant: Tenant, reading: Submit) -> None:
    many = reading(4 * PREPARE_LINES)
    other = tenants.create_tenant(session, "other")
    session.commit()
    few = reading(2 * PREPARE_LINES, tenant_id=other.id)
    order = []
    for _ in range(4):
        claim = claiming.claim_next(session, model=PREPARE_MODEL, worker_id=WORKER, lease=LEASE)
        assert claim is not None
        finish(session, claim)
        order.append(claim.batch_id)
    assert sorted(order[:2]) == sorted([many.id, few.id])
    assert sorted(order[2:]) == sorted([many.id, few.id])
    assert totals(session, few)["results"] == 2 * PREPARE_LINES


def test_users_make_no_batch_of_an_endpoint_of_the_service(
    session: Session, tenant: Tenant, make_file: Callable[..., File], settings: Settings
) -> None:
    wanted = CreateBatch(input_file_id=make_file().id, endpoint=READ_ENDPOINT, completion_window="24h")
    with pytest.raises(InputError, match="the service's own batches alone"):
        lifecycle.create_batch(session, tenant, wanted, settings)


def test_the_service_makes_one_and_reserves_no_token(
    session: Session, tenant: Tenant, make_file: Callable[..., File], settings: Settings
) -> None:
    budgets.set_limit(session, tenant.id, 0)
    wanted = CreateBatch(input_file_id=make_file().id, endpoint=READ_ENDPOINT, completion_window="24h", is_ours=True)
    batch = lifecycle.create_batch(session, tenant, wanted, settings)
    assert (batch.reserved_tokens, batch.priority) == (0, "normal")


def test_a_batch_that_nobody_prepares_says_so(session: Session, reading: Submit) -> None:
    batch = reading(1)
    session.refresh(batch)
    assert "tokenmill prepare" in unserved.waits_for(session, [batch])[batch.id]
    fleet.register(session, worker_id=WORKER, model=PREPARE_MODEL, max_chunks=1, max_model_len=0)
    assert unserved.waits_for(session, [batch]) == {}
    assert fleet.contexts(session) == {}


def test_no_model_has_the_name_of_that_queue(session: Session) -> None:
    with pytest.raises(InputError, match="not begin with a colon"):
        served_models.add_model(session, PREPARE_MODEL, "/models/m")


def test_a_line_of_a_chat_cannot_name_that_queue(
    session: Session, storage: Storage, settings: Settings, submit: Submit, request_line: Callable[..., str]
) -> None:
    batch = submit([request_line("a0", model=PREPARE_MODEL)])
    assert validate(session, storage, batch.id, settings=settings) is BatchState.FAILED
    assert chunk_ids(session, batch) == []


def test_the_audit_misses_no_bill_for_what_is_prepared(session: Session, reading: Submit) -> None:
    finish(session, claim_first(session, reading(2)))
    assert audit(session) == []
