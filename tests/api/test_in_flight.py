"""What is costly to answer: a tenant has a few of these under way at once, however many it sends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.batches import estimating
from jobs.batches.estimating import Checked

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


def usage(client: OpenAI) -> httpx.Response:
    return client.get("/usage", cast_to=httpx.Response)


def estimate(client: OpenAI) -> httpx.Response:
    body = {"requests": [{"body": {"model": "nobody's", "messages": []}}]}
    return client.post("/estimates", cast_to=httpx.Response, body=body)


def wait_for_locks(deployment: Any, count: int) -> None:
    deadline = time.monotonic() + 20
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
