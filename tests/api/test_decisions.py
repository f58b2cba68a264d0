"""Tests of a batch's decisions as read by its owner, and of their retention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai import OpenAI
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs import decisions
from jobs.batches.lost_leases import reap_expired
from jobs.chunks import claiming, leasing, waiting
from jobs.database import sessions
from tests.api.worker import LEASE, run, validate


def read(client: OpenAI, batch_id: str) -> list[dict[str, Any]]:
    answer: Any = client.get(f"/batches/{batch_id}/decisions", cast_to=dict[str, Any])
    assert answer["object"] == "list"
    data: list[dict[str, Any]] = answer["data"]
    return data


@pytest.fixture
def batch_id(client: OpenAI, input_lines: Callable[..., bytes]) -> str:
    file = client.files.create(file=("in.jsonl", input_lines(2) + b"no json\n"), purpose="batch")
    return client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        extra_body={"invalid_lines": "skip"},
    ).id


def claim(deployment: Any, batch_id: str, worker_id: str) -> leasing.ClaimedChunk:
    with Session(deployment.engine) as session, session.begin():
        chunk_id = session.scalar(text("SELECT id FROM chunk WHERE batch_id = :id"), {"id": batch_id})
        found = claiming.claim_chunk(session, int(chunk_id or 0), worker_id=worker_id, lease=LEASE)
    assert found is not None
    return found


def test_the_owner_reads_what_became_of_a_batch_and_by_whom(
    client: OpenAI, new_client: Callable[..., OpenAI], deployment: Any, batch_id: str
) -> None:
    assert read(client, batch_id) == []
    validate(deployment, batch_id)
    for worker_id in ("w1", "w1", "w2"):
        claimed = claim(deployment, batch_id, worker_id)
        with Session(deployment.engine) as session, session.begin():
            leasing.release(session, claimed)
    with Session(deployment.engine) as session, session.begin():
        waiting.lay_aside(session, claim(deployment, batch_id, "w3"), tokens=700)
        waiting.wake(session)
    client.post(f"/batches/{batch_id}", cast_to=object, body={"priority": "bulk"})
    run(deployment, batch_id)
    told = {(found["kind"], found["worker"]): found for found in read(client, batch_id)}
    counts = {key: found["count"] for key, found in told.items()}
    assert counts == {
        ("validated", None): 1,
        ("claimed", "w1"): 2,
        ("claimed", "w2"): 1,
        ("claimed", "w3"): 1,
        ("claimed", "worker"): 1,
        ("given_back", "w1"): 2,
        ("given_back", "w2"): 1,
        ("waits_for_budget", None): 1,
        ("went_on", None): 1,
        ("changed", None): 1,
    }
    messages = {kind: found["message"] for (kind, worker), found in told.items() if worker in {None, "w1"}}
    assert messages == {
        "validated": "Its input was validated: 3 lines, 1 of them refused.",
        "claimed": "Worker w1 claimed 2 chunks.",
        "given_back": "Worker w1 gave 2 chunks back.",
        "waits_for_budget": "The budget had no room for what 1 chunk needed; 700 tokens last.",
        "went_on": "The budget had room for 1 chunk that had waited.",
        "changed": "Its owner changed it: class normal → bulk.",
    }
    moments = [found["last_at"] for found in read(client, batch_id)]
    assert moments == sorted(moments, reverse=True)
    with pytest.raises(openai.NotFoundError):
        read(new_client(), batch_id)


def test_a_lost_lease_names_who_fell_silent(client: OpenAI, deployment: Any, batch_id: str) -> None:

    validate(deployment, batch_id)
    claim(deployment, batch_id, "w9")
    with Session(deployment.engine) as session, session.begin():
        session.execute(
            text("UPDATE chunk SET lease_until = now() - interval '1 second' WHERE batch_id = :id"), {"id": batch_id}
        )
        reap_expired(session, lease=LEASE)
    lost = [found for found in read(client, batch_id) if found["kind"] == "lost_lease"]
    assert [found["message"] for found in lost] == ["Worker w9 went silent with 1 chunk; the last one is ready."]
    client.batches.cancel(batch_id)


def test_a_kind_that_a_newer_release_wrote_is_told(client: OpenAI, deployment: Any, batch_id: str) -> None:
    with Session(deployment.engine) as session, session.begin():
        decisions.note(session, batch_id, decisions.Kind.CHANGED, num=2)
        session.execute(text("UPDATE decision SET kind = 'dreamt' WHERE batch_id = :id"), {"id": batch_id})
    (told,) = read(client, batch_id)
    assert (told["kind"], told["count"]) == ("dreamt", 2)
    assert told["message"] == "A newer release of Tokenmill decided 'dreamt' 2 times."
    client.batches.cancel(batch_id)


def test_decisions_are_forgotten_after_a_day(client: OpenAI, deployment: Any, batch_id: str) -> None:
    run(deployment, batch_id)
    maker = sessions(deployment.engine)
    decisions.forget(maker)
    assert len(read(client, batch_id)) == 2
    with maker.begin() as session:
        session.execute(
            text("UPDATE decision SET last_at = now() - interval '25 hours' WHERE batch_id = :id"), {"id": batch_id}
        )
    assert decisions.forget(maker) == 2
    assert read(client, batch_id) == []
