"""Tests of costly requests: a tenant has only a few in flight, however many it sends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from anyio.to_thread import run_sync
from openai import OpenAI
from openai.types import Batch
from sqlalchemy import text
from sqlalchemy.orm import Session

from api import store
from api.batches import making
from jobs.batches import estimating, retrying
from jobs.batches.estimating import Checked
from jobs.batches.retrying import RetrySource
from tests.api.worker import run

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


def usage(client: OpenAI) -> httpx.Response:
    return client.get("/usage", cast_to=httpx.Response)


def estimate(client: OpenAI) -> httpx.Response:
    body = {"requests": [{"body": {"model": "nobody's", "messages": []}}]}
    return client.post("/estimates", cast_to=httpx.Response, body=body)


def wait_for_locks(deployment: Any, count: int) -> None:
    deadline = time.monotonic() + 120
    while True:
        with Session(deployment.engine) as session:
            if session.scalar(text(WAITING)) == count:
                return
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("call", "table", "what"), [(usage, "ledger", "sums"), (estimate, "model", "estimates")], ids=["usage", "estimate"]
)
def test_a_third_one_at_once_is_refused_before_it_takes_a_session(
    client: OpenAI, deployment: Any, call: Callable[[OpenAI], httpx.Response], table: str, what: str
) -> None:
    with ThreadPoolExecutor(max_workers=2) as executor:
        with deployment.engine.begin() as connection:
            connection.execute(text(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
            two = [executor.submit(call, client) for _ in range(2)]
            wait_for_locks(deployment, 2)
            with pytest.raises(openai.RateLimitError) as caught:
                call(client.with_options(timeout=10))
        assert [one.result().status_code for one in two] == [200, 200]
    assert caught.value.code == f"{what}_exceeded"
    assert f"You have 2 {what} at once here and 2 are allowed" in caught.value.message
    assert caught.value.response.headers["x-should-retry"] == "true"
    assert call(client).status_code == 200


def test_estimates_of_all_tenants_share_a_few_threads(
    new_client: Callable[..., OpenAI], monkeypatch: pytest.MonkeyPatch
) -> None:
    five = threading.Barrier(5)

    def check(*_: object, **__: object) -> Checked:
        try:
            five.wait(2)
        except threading.BrokenBarrierError:
            return Checked(num_lines=0, num_invalid=0, listed=[], model=None)
        raise AssertionError("five were checked at once")

    monkeypatch.setattr(estimating, "check_lines", check)
    clients = [new_client() for _ in range(3)]
    with ThreadPoolExecutor(max_workers=6) as executor:
        answers = list(executor.map(estimate, clients * 2))
    assert [answer.status_code for answer in answers] == [200] * 6


def test_a_tenant_has_two_inputs_of_retries_made_at_once_and_uploads_go_on(
    client: OpenAI, deployment: Any, input_lines: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may be gigabytes: a third waits, and none of them holds a thread of an upload."""
    batches = []
    for number in range(3):
        file = client.files.create(file=("in.jsonl", input_lines(2)), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h",
            metadata={"number": str(number)},
        )  # fmt: skip
        run(deployment, batch.id, failed=(1,))
        batches.append(batch.id)
    entered, both, goes_on = [], threading.Semaphore(0), threading.Event()
    limiters: list[Any] = []

    async def noted(*arguments: Any, limiter: Any = None) -> Any:
        limiters.append(limiter)
        return await run_sync(*arguments, limiter=limiter)

    def failed_lines(_: object, source: RetrySource) -> Iterator[bytes]:
        entered.append(source.batch_id)
        both.release()
        assert goes_on.wait(60)
        yield b"{}"

    monkeypatch.setattr(retrying, "failed_lines", failed_lines)
    monkeypatch.setattr(making, "run_sync", noted)
    with ThreadPoolExecutor(3) as executor:
        answers = executor.map(lambda batch_id: client.post(f"/batches/{batch_id}/retry", cast_to=Batch), batches)
        assert both.acquire(timeout=60)
        assert both.acquire(timeout=60)
        assert client.files.create(file=("in.jsonl", b"x"), purpose="user_data").bytes == 1
        assert len(entered) == 2
        goes_on.set()
        assert len({batch.id for batch in answers}) == 3
    assert {limiter.total_tokens for limiter in limiters if limiter is not None} == {store._MAKING_THREADS}
