"""Tests of whole lives of batches, from the upload's bytes to the audit, without API and engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs import files, served_models
from jobs.accounts import budgets
from jobs.audit.audit import audit
from jobs.batches import lifecycle, sweeps
from jobs.batches.submission import CreateBatch
from jobs.chunks import claiming, leasing
from jobs.chunks.recording import LineResult
from jobs.lines.input_estimate import InputEstimator
from jobs.lines.output_lines import output_line
from jobs.settings import Settings
from jobs.states import BatchState, InvalidLines
from jobs.storage import Storage
from jobs.tables import Batch, Tenant
from tests.jobs.batches.control import finalise, validate

CHAT = "/v1/chat/completions"
LEASE = timedelta(seconds=20)


@pytest.fixture
def settings() -> Settings:
    return Settings(chunk_lines=4)


def line(index: int, **fields: Any) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10}
    return json.dumps({"custom_id": f"c{index}", "method": "POST", "url": CHAT, "body": body} | fields)


Submit = Callable[..., Batch]


@pytest.fixture
def submit(session: Session, storage: Storage, tenant: Tenant, settings: Settings) -> Submit:
    """Upload, create and validate as the service does."""
    served_models.add_model(session, "m", "/m", input_price_picos=1_000_000, output_price_picos=2_000_000)

    def submit(lines: Sequence[str], **wishes: Any) -> Batch:
        content = "\n".join(lines).encode()
        estimator = InputEstimator(default_max_tokens=settings.default_max_tokens)
        estimator.feed(content)
        key = files.new_object_key(tenant.id)
        size = storage.put(key, content)
        new = files.NewFile(
            object_key=key, filename="in.jsonl", purpose="batch", size_bytes=size, estimate=estimator.finish()
        )
        file = files.create_file(session, tenant.id, new)
        wanted = CreateBatch(input_file_id=file.id, endpoint=CHAT, completion_window="24h", **wishes)
        batch = lifecycle.create_batch(session, tenant, wanted, settings)
        session.commit()
        assert sweeps.pick_for_validation(session, again_seconds=10) == [batch.id]
        validate(session, storage, batch.id, settings=settings)
        session.commit()
        return batch

    return submit


def run_chunk(session: Session) -> None:
    """Claim the next chunk and answer all of its lines in one flush, 5 tokens in and 7 out each."""
    claim = claiming.claim_next(session, model="m", worker_id="w", lease=LEASE)
    assert claim is not None
    done = leasing.lines_done(session, claim)
    numbers = [number for number in range(claim.first_line, claim.first_line + claim.num_lines) if number not in done]
    results = [
        LineResult(
            line_no=number,
            line=output_line(claim.batch_id, number, f"c{number}", status_code=200, body={}),
            status_code=200,
            input_tokens=5,
            output_tokens=7,
        )
        for number in numbers
    ]
    leasing.flush(session, claim, results, flush_no=1, lease=LEASE)
    leasing.complete(session, claim)
    session.commit()


def end(session: Session, storage: Storage, batch: Batch) -> None:
    assert sweeps.pick_for_finalizing(session, again_seconds=10) == [batch.id]
    session.commit()
    finalise(session, storage, batch.id)
    session.commit()
    session.refresh(batch)


def clean(maker: sessionmaker[Session], storage: Storage) -> bool:
    with maker() as fresh:
        assert audit(fresh, storage=storage) == []
    return True


def test_a_batch_that_completes_has_every_answer_and_costs_what_it_used(
    session: Session, maker: sessionmaker[Session], storage: Storage, tenant: Tenant, submit: Submit
) -> None:
    budgets.set_limit(session, tenant.id, 10_000)
    batch = submit([line(index) for index in range(10)])
    assert (batch.state, batch.num_requests) == (BatchState.IN_PROGRESS, 10)
    reserved = batch.reserved_tokens
    assert budgets.quota(session, tenant.id).available == 10_000 - reserved
    for _ in range(3):
        assert clean(maker, storage)
        assert sweeps.finish_ready(session) == []
        run_chunk(session)
    assert sweeps.finish_ready(session) == [batch.id]
    end(session, storage, batch)
    assert (batch.state, batch.num_completed, batch.error_file_id) == (BatchState.COMPLETED, 10, None)
    quota = budgets.quota(session, tenant.id)
    assert (quota.reserved, quota.spent, quota.available) == (0, 120, 9880)
    assert clean(maker, storage)


def test_a_batch_that_is_cancelled_on_the_way_keeps_and_bills_what_is_finished(
    session: Session, maker: sessionmaker[Session], storage: Storage, tenant: Tenant, submit: Submit
) -> None:
    batch = submit([line(index) for index in range(10)])
    run_chunk(session)
    lifecycle.cancel_batch(session, tenant.id, batch.id)
    session.commit()
    assert clean(maker, storage)
    end(session, storage, batch)
    assert (batch.state, batch.num_completed, batch.num_failed) == (BatchState.CANCELLED, 4, 6)
    assert budgets.quota(session, tenant.id).spent == 48
    assert clean(maker, storage)


def test_a_batch_whose_window_ends_on_the_way_keeps_what_is_finished(
    session: Session, maker: sessionmaker[Session], storage: Storage, tenant: Tenant, submit: Submit
) -> None:
    batch = submit([line(index) for index in range(10)])
    run_chunk(session)
    session.execute(text("UPDATE batch SET expires_at = now()"))
    assert sweeps.expire_overdue(session) == [batch.id]
    session.commit()
    end(session, storage, batch)
    assert (batch.state, batch.num_completed, batch.num_failed) == (BatchState.EXPIRED, 4, 6)
    assert budgets.quota(session, tenant.id).reserved == 0
    assert clean(maker, storage)


def test_a_batch_with_bad_lines_fails_or_goes_on_without_them(
    session: Session, maker: sessionmaker[Session], storage: Storage, tenant: Tenant, submit: Submit
) -> None:
    lines = [line(0), "{", line(2), line(0), line(4), line(5, url="/v1/other"), line(6)]
    failed = submit(lines)
    assert (failed.state, failed.reserved_tokens, len(failed.errors or [])) == (BatchState.FAILED, 0, 3)
    assert clean(maker, storage)
    batch = submit(lines, invalid_lines=InvalidLines.SKIP)
    assert (batch.num_requests, batch.num_failed) == (7, 3)
    while sweeps.finish_ready(session) == []:
        assert clean(maker, storage)
        run_chunk(session)
    end(session, storage, batch)
    assert (batch.state, batch.num_completed, batch.num_failed) == (BatchState.COMPLETED, 4, 3)
    assert clean(maker, storage)


def test_an_empty_file_fails_validation_and_reserves_nothing(
    session: Session, maker: sessionmaker[Session], storage: Storage, tenant: Tenant, submit: Submit
) -> None:
    batch = submit(["", " "])
    assert batch.state == BatchState.FAILED
    assert [error["code"] for error in batch.errors or []] == ["empty_file"]
    assert clean(maker, storage)
