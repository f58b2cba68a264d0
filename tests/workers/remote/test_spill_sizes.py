"""Tests of lines whose size is only a bound: what is reserved, sent, covered and billed of them outside the house."""

from __future__ import annotations

import json

import pytest

from jobs.accounts import budgets
from jobs.forecasts import snapshot
from jobs.tables import Tenant
from tests.workers.remote.builders import CONTEXT, Post
from tests.workers.remote.fake_server import FakeServer, Request, good_answer
from tests.workers.remote.misbehaviours import MISBEHAVIOURS, with_status
from tests.workers.remote.spilling import PAID, PATIENT, MakeLine, SubmitLines, paid, run_while_any, spill, used
from workers.remote.sizes import ByteSizes

QUESTION = "Why? " * 1000
"""It has 5,000 bytes, more than the context has tokens."""
TOO_LONG = with_status("400 Bad Request", "This model's maximum context length is 2048 tokens")


def test_the_limit_for_which_money_is_reserved_is_sent_and_a_long_prompt_is_reserved_whole(
    post: Post, server: FakeServer, submit_late: SubmitLines, line: MakeLine
) -> None:
    submit_late([line(0, max_tokens=None, messages=[{"role": "user", "content": QUESTION}])])
    sizes = ByteSizes(max_model_len=CONTEXT, is_outside=True)
    post.open(spill=spill(5000 * 3 + CONTEXT // 4 * 5), sizes=sizes)
    run_while_any(post)
    assert server.num_asked[QUESTION] == 0
    post.close()
    post.open(spill=spill(6000 * 3 + CONTEXT // 4 * 5), sizes=sizes)
    with post.maker.begin() as session:
        snapshot.take(session)
    run_while_any(post)
    assert server.bodies[QUESTION]["max_tokens"] == CONTEXT // 4
    assert used(post) == paid(post) == PAID


@pytest.mark.parametrize(
    ("max_tokens", "room", "limits", "is_answered"),
    [
        (None, 100, [512, 256, 128, 64], True),
        (None, 0, [512, 256, 128, 64, 32, 16, 8, 4, 2, 1], False),
        (None, 512, [512], True),
        (200, 100, [200], False),
    ],
)
def test_a_limit_that_we_chose_shrinks_until_the_server_takes_it(
    post: Post,
    server: FakeServer,
    submit_late: SubmitLines,
    line: MakeLine,
    max_tokens: int | None,
    room: int,
    limits: list[int],
    *,
    is_answered: bool,
) -> None:
    """A prompt may have more tokens than a quarter of its bytes, which leave less of the context than that limit."""
    asked: list[int] = []

    async def with_little_room(request: Request) -> None:
        asked.append(request.body["max_tokens"])
        behaviour = TOO_LONG if request.body["max_tokens"] > room else MISBEHAVIOURS["well-soon"]
        await behaviour(request)

    server.behaviours["little-room"] = with_little_room
    question = "misbehave little-room " + QUESTION
    submit_late([line(0, max_tokens=max_tokens, messages=[{"role": "user", "content": question}])])
    post.open(spill=spill(10**6), sizes=ByteSizes(max_model_len=CONTEXT, is_outside=True), patience=PATIENT)
    run_while_any(post)
    assert asked == limits
    if is_answered:
        assert post.bodies_of(200)
    else:
        assert [body["error"]["code"] for body in post.bodies_of(400)] == ["context_length_exceeded"]
    assert used(post) == paid(post) == (PAID if is_answered else 0)


@pytest.mark.parametrize("limit", [2 * CONTEXT, CONTEXT + 600 + 4, None])
def test_a_tenant_covers_and_pays_no_more_of_a_prompt_than_the_context(
    post: Post, server: FakeServer, submit_late: SubmitLines, line: MakeLine, tenant: Tenant, limit: int | None
) -> None:
    """The server reads all of it and is paid for it."""

    async def read_all(request: Request) -> None:
        usage = {"prompt_tokens": 3000, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 2900}}
        await request.answer(json.dumps(good_answer(request.body, usage=usage)).encode())

    server.behaviours["read-all"] = read_all
    with post.maker.begin() as session:
        budgets.set_limit(session, tenant.id, limit)
    submit_late([line(0, messages=[{"role": "user", "content": f"misbehave read-all {QUESTION}"}])])
    post.open(spill=spill(10**6), sizes=ByteSizes(max_model_len=CONTEXT, is_outside=True), patience=PATIENT)
    run_while_any(post)
    assert post.billed() == (CONTEXT, 2)
    assert post.rows("SELECT cached_tokens::int FROM ledger") == [(CONTEXT,)]
    assert used(post) == paid(post) == 3000 * 3 + 2 * 5
    assert post.rows("SELECT state FROM chunk") == [("done",)]
