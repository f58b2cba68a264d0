"""Tests of changing the class or window of a batch that waits or runs: its new turn, and every refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import Batch
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.chunks import claiming, leasing
from jobs.states import AskedPriority
from tests.api.worker import LEASE, run, validate


@pytest.fixture
def submit(input_lines: Callable[..., bytes]) -> Callable[..., Batch]:
    def upload_and_create(client: OpenAI, **wishes: str) -> Batch:
        file = client.files.create(file=("in.jsonl", input_lines(2)), purpose="batch")
        return client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            extra_body=wishes,
        )

    return upload_and_create


def change(client: OpenAI, batch_id: str, **body: Any) -> Batch:
    return client.post(f"/batches/{batch_id}", cast_to=Batch, body=body)


def chunks(deployment: Any, batch_id: str) -> set[tuple[str, int]]:
    with Session(deployment.engine) as session:
        query = text("SELECT priority, extract(epoch FROM expires_at) FROM chunk WHERE batch_id = :id")
        return {(row[0], int(row[1])) for row in session.execute(query, {"id": batch_id})}


def test_a_waiting_batch_moves_to_another_class_with_its_chunks(
    client: OpenAI, deployment: Any, submit: Callable[..., Batch]
) -> None:
    first, second = submit(client), submit(client)
    for batch in (first, second):
        validate(deployment, batch.id)
    changed = change(client, second.id, priority="urgent", completion_window="2h")
    assert changed.model_extra is not None
    assert (changed.model_extra["priority"], changed.completion_window) == ("urgent", "2h")
    assert changed.expires_at == changed.created_at + 7200
    assert client.batches.retrieve(second.id).expires_at == changed.expires_at
    assert chunks(deployment, second.id) == {("urgent", changed.expires_at)}
    with Session(deployment.engine) as session, session.begin():
        claim = claiming.claim_next(session, model="org/tiny", worker_id="w", lease=LEASE)
        assert claim is not None
        assert (claim.batch_id, claim.priority) == (second.id, "urgent")
        session.rollback()
    for batch in (first, second):
        run(deployment, batch.id)


def share(session: Session, batch_id: str) -> float:
    """Return the virtual time of a batch's tenant in the class of normal work."""
    query = text("""
        SELECT virtual_time FROM fair_share JOIN batch USING (tenant_id)
        WHERE batch.id = :id AND fair_share.priority = 'normal'
    """)
    return float(session.scalar(query, {"id": batch_id}) or 0)


def test_a_chunk_that_runs_comes_back_in_the_new_class_and_was_charged_in_the_old_one(
    client: OpenAI, deployment: Any, submit: Callable[..., Batch]
) -> None:
    batch = submit(client)
    validate(deployment, batch.id)
    with Session(deployment.engine) as session:
        before = share(session, batch.id)
        chunk_id = session.scalar(text("SELECT id FROM chunk WHERE batch_id = :id"), {"id": batch.id})
        claim = claiming.claim_chunk(session, int(chunk_id or 0), worker_id="w", lease=LEASE)
        session.commit()
        assert claim is not None
        assert share(session, batch.id) > before
        change(client, batch.id, priority="bulk")
        leasing.release(session, claim)
        session.commit()
        assert share(session, batch.id) == before, "what it did not use it has back"
    assert {priority for priority, _ in chunks(deployment, batch.id)} == {"bulk"}
    run(deployment, batch.id)
    assert client.batches.retrieve(batch.id).status == "completed"


def test_a_batch_that_is_not_validated_yet_starts_in_the_new_class(
    client: OpenAI, deployment: Any, submit: Callable[..., Batch]
) -> None:
    batch = submit(client)
    change(client, batch.id, priority="bulk")
    validate(deployment, batch.id)
    assert {priority for priority, _ in chunks(deployment, batch.id)} == {"bulk"}
    run(deployment, batch.id)


def refusal(client: OpenAI, batch_id: str, **body: Any) -> tuple[int, str | None, str | None]:
    with pytest.raises(openai.APIStatusError) as caught:
        change(client, batch_id, **body)
    return caught.value.status_code, caught.value.code, caught.value.param


def test_what_may_not_be_changed_is_refused_and_stays(
    new_client: Callable[..., OpenAI], deployment: Any, submit: Callable[..., Batch]
) -> None:
    client = new_client(best_priority=AskedPriority.NORMAL)
    batch = submit(client)
    with Session(deployment.engine) as session, session.begin():
        session.execute(
            text("UPDATE batch SET created_at = created_at - interval '1 hour' WHERE id = :id"), {"id": batch.id}
        )
    assert refusal(client, batch.id, priority="urgent") == (403, "priority_not_allowed", "priority")
    assert refusal(client, batch.id, completion_window="30m") == (400, "invalid_value", "completion_window")
    assert refusal(client, batch.id, completion_window="soon") == (400, "invalid_value", "completion_window")
    assert refusal(client, batch.id, metadata={}) == (400, "unknown_parameter", "metadata")
    assert refusal(client, batch.id) == (400, "invalid_body", None)
    assert refusal(new_client(), batch.id, priority="bulk")[0] == 404
    found = client.batches.retrieve(batch.id)
    assert (found.completion_window, (found.model_extra or {})["priority"]) == ("24h", "normal")
    client.batches.cancel(batch.id)
    assert refusal(client, batch.id, priority="bulk")[:2] == (409, "batch_not_changeable")
