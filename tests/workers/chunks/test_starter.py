"""Tests of lines of a tenant with a limit: they start once they are covered; without room they wait or fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session, sessionmaker

from jobs import served_models
from jobs.accounts import budgets, window_budgets
from jobs.accounts.window_budgets import NewBudget
from jobs.audit.audit import audit
from jobs.batches import sweeps
from jobs.chunks import claiming, wait_reasons, waiting
from jobs.lines.reading import InputLine
from jobs.states import BudgetUnit, BudgetWindow, UncoveredLines
from jobs.storage import Storage
from jobs.tables import Batch, Tenant
from tests.workers.chunks.builders import CHUNKS, Bench, FakeHost, MakeLine, SubmitLines
from workers.chunks.answerer import LONG_LINE_BYTES

NUM_LINES = 34
DENSE = "qxzj" * 110  # one token per letter, which bytes ÷ 4 estimates as a quarter


def dense(line: MakeLine, number: int, **body: Any) -> dict[str, Any]:
    return line(number, messages=[{"role": "user", "content": DENSE}], **body)


def set_limit(maker: sessionmaker[Session], tenant: Tenant, tokens: int | None) -> None:
    with maker.begin() as session:
        budgets.set_limit(session, tenant.id, tokens)


def quota(maker: sessionmaker[Session], tenant: Tenant) -> budgets.Quota:
    with maker() as session:
        return budgets.quota(session, tenant.id)


def wake(maker: sessionmaker[Session]) -> int:
    with maker.begin() as session:
        return waiting.wake(session)


def work_off(bench: Bench) -> None:
    """Run chunks one after the other, and the dispatcher's sweep after each, until there are none."""
    while True:
        with bench.maker.begin() as session:
            claim = claiming.claim_next(session, model="demo", worker_id="w", lease=bench.services.settings.lease)
        if claim is not None:
            bench.start(claim)
            bench.join()
        if wake(bench.maker) == 0 and claim is None:
            return


def clean(maker: sessionmaker[Session], storage: Storage) -> bool:
    with maker() as fresh:
        assert audit(fresh, storage=storage) == []
    return True


def test_an_accepted_batch_does_not_spend_more_than_the_limit_and_goes_on_when_it_is_raised(
    bench: Bench,
    host: FakeHost,
    maker: sessionmaker[Session],
    storage: Storage,
    tenant: Tenant,
    submit_valid: SubmitLines,
    read_batch: Callable[[str], Batch],
    line: MakeLine,
) -> None:
    set_limit(maker, tenant, 5000)
    batch_id = submit_valid([dense(line, number) for number in range(NUM_LINES)])
    host.instant = True
    work_off(bench)
    found, batch = quota(maker, tenant), read_batch(batch_id)
    assert found.spent + found.reserved <= 5000
    assert 0 < batch.num_completed < NUM_LINES
    assert found.available is not None
    assert batch.waits_for_tokens is not None
    assert batch.waits_for_tokens > found.available, "as much was run as there is room for"
    assert str(wait_reasons.waits_for(batch, found)).startswith(
        "waiting_budget: the batch continues when there is room for"
    )
    assert clean(maker, storage)

    set_limit(maker, tenant, 20_000)
    assert wake(maker) > 0
    work_off(bench)
    batch = read_batch(batch_id)
    assert (batch.num_completed, batch.waits_for_tokens) == (NUM_LINES, None)
    assert quota(maker, tenant).spent == batch.input_tokens + batch.output_tokens > 15_000
    with maker.begin() as session:
        assert sweeps.finish_ready(session) == [batch_id]
    assert clean(maker, storage)


def test_lines_that_nothing_limits_are_handed_over_together_but_before_a_long_one(
    bench: Bench,
    host: FakeHost,
    maker: sessionmaker[Session],
    tenant: Tenant,
    submit_valid: SubmitLines,
    line: MakeLine,
) -> None:
    set_limit(maker, tenant, None)
    submit_valid([line(0), line(1), line(2, user="u" * LONG_LINE_BYTES), line(3)])
    host.instant = True
    bench.change_parts(monotonic=lambda: 0.0)
    bench.start(bench.claim())
    bench.join()
    assert host.group_sizes == [2, 2]


def test_lines_without_cover_fail_unbilled_where_the_batch_wants_it(
    bench: Bench,
    host: FakeHost,
    maker: sessionmaker[Session],
    storage: Storage,
    tenant: Tenant,
    submit_valid: SubmitLines,
    read_batch: Callable[[str], Batch],
    line: MakeLine,
) -> None:
    set_limit(maker, tenant, 2500)
    batch_id = submit_valid([dense(line, number) for number in range(10)], uncovered_lines=UncoveredLines.FAIL)
    host.instant = True
    work_off(bench)
    batch = read_batch(batch_id)
    assert (batch.num_completed, batch.num_failed) == (5, 5)
    assert batch.input_tokens + batch.output_tokens == quota(maker, tenant).spent
    (content,) = bench.rows("SELECT line FROM result WHERE is_error ORDER BY line_no DESC LIMIT 1")[0]
    failed = json.loads(bytes(content))
    assert (failed["response"], failed["error"]["code"]) == (None, "insufficient_quota")
    assert "This line may use 448 tokens and 268 are available" in failed["error"]["message"]
    assert "the limit is 2,500" in failed["error"]["message"]
    with maker.begin() as session:
        assert sweeps.finish_ready(session) == [batch_id]
    assert clean(maker, storage)


def test_lines_that_are_covered_run_on_and_the_chunk_waits_with_the_others_alone(
    bench: Bench,
    host: FakeHost,
    maker: sessionmaker[Session],
    tenant: Tenant,
    submit_valid: SubmitLines,
    line: MakeLine,
) -> None:
    set_limit(maker, tenant, 600)
    submit_valid([dense(line, 0, max_tokens=50), line(1), dense(line, 2, max_tokens=52), line(3)])
    host.instant = True
    bench.start(bench.claim())
    bench.join()
    assert len(host.prompts) == 3
    assert bench.rows("SELECT line_no FROM result ORDER BY line_no") == [(0,), (1,), (3,)]
    assert bench.rows("SELECT state, losses, covered_tokens FROM chunk") == [("waiting", 0, 0)]
    set_limit(maker, tenant, 2000)
    assert wake(maker) == 1
    bench.start(bench.claim())
    bench.join()
    assert bench.rows(CHUNKS) == [("done", 2)]
    assert len(host.prompts) == 4


def test_a_line_starts_in_the_room_that_another_of_its_chunk_leaves(
    bench: Bench,
    host: FakeHost,
    maker: sessionmaker[Session],
    tenant: Tenant,
    submit_valid: SubmitLines,
    line: MakeLine,
) -> None:
    set_limit(maker, tenant, 1130)
    submit_valid([dense(line, 0, max_tokens=50), dense(line, 1, max_tokens=52), dense(line, 2, max_tokens=54)])
    bench.start(bench.claim())
    host.wait_for(2)
    assert len(host.waiting) == 2
    assert bench.rows("SELECT covered_tokens FROM batch") == bench.rows("SELECT covered_tokens FROM chunk") != [(0,)]
    host.answer(1)
    bench.wait_until("SELECT count(*)::int FROM result", [(1,)])
    assert len(host.prompts) == 2, "what it left is too little"
    set_limit(maker, tenant, 1450)
    host.answer(1)
    host.wait_for(3)
    host.answer(1)
    bench.join()
    assert bench.rows("SELECT state, covered_tokens FROM chunk") == [("done", 0)]


def test_a_tenant_without_a_limit_has_nothing_covered(
    bench: Bench,
    host: FakeHost,
    maker: sessionmaker[Session],
    tenant: Tenant,
    submit_valid: SubmitLines,
    line: MakeLine,
) -> None:
    slow = bench.services.settings.model_copy(update={"flush_seconds": 5.0})
    bench.change_parts(settings=slow)
    statements = {}
    for tokens in (None, 1_000_000):
        set_limit(maker, tenant, tokens)
        submit_valid([line(number) for number in range(4)])
        claim = bench.claim()
        seen: list[str] = []
        watch = lambda *call, seen=seen: seen.append(call[2])  # noqa: E731
        event.listen(maker.kw["bind"], "before_cursor_execute", watch)
        host.instant = True
        bench.start(claim)
        bench.join()
        event.remove(maker.kw["bind"], "before_cursor_execute", watch)
        statements[tokens] = [statement for statement in seen if "reserved_tokens - covered_tokens" in statement]
    assert (len(statements[None]), len(statements[1_000_000])) == (0, 1), "one for the whole group where there is one"


CHAT_LINE = {"messages": [{"role": "user", "content": "Hello"}]}


@pytest.mark.parametrize(
    "body",
    [
        {**CHAT_LINE, "max_tokens": 7},
        {**CHAT_LINE, "max_completion_tokens": 7, "n": 3},
        CHAT_LINE,
        {**CHAT_LINE, "n": 2, "stop": ["never"], "logprobs": True},
        {**CHAT_LINE, "max_tokens": 9, "response_format": {"type": "json_object"}},
        {"prompt": [[40, 41, 42], [43]], "n": 2, "max_tokens": 5},
        {"prompt": ["one", "two"]},
        {"prompt": "echoed", "echo": True, "max_tokens": 0},
    ],
)
def test_lines_that_use_all_they_may_use_what_was_covered(
    bench: Bench,
    host: FakeHost,
    maker: sessionmaker[Session],
    storage: Storage,
    submit_valid: SubmitLines,
    body: dict[str, Any],
) -> None:
    endpoint = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    line = {"custom_id": "c", "method": "POST", "url": endpoint, "body": {"model": "demo", **body}}
    submit_valid([line], endpoint=endpoint)
    bench.start(bench.claim())
    host.wait_for(2 if isinstance(body.get("prompt"), list) else 1)
    ((covered,),) = bench.rows("SELECT covered_tokens FROM chunk")
    host.answer_in_full(max_model_len=512)
    bench.join()
    assert bench.rows("SELECT status_code, input_tokens + output_tokens FROM result") == [(200, covered)]
    assert clean(maker, storage)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"max_tokens": 7}, lambda prompt: prompt + 7),
        ({"max_completion_tokens": 7, "n": 3}, lambda prompt: prompt + 21),
        ({"max_tokens": None}, lambda _: 512),
        ({"max_tokens": None, "n": 2}, lambda prompt: prompt + 2 * (512 - prompt)),
    ],
)
def test_a_chat_may_use_its_prompt_once_and_each_of_its_answers(
    bench: Bench, line: MakeLine, body: dict[str, Any], expected: Callable[[int], int]
) -> None:
    given = line(0)
    del given["body"]["max_tokens"]
    asked = {name: value for name, value in body.items() if value is not None}
    prepared = bench.parts.prompts.prepare(
        InputLine(line_no=0, custom_id="c", model="demo", body=given["body"] | asked),
        endpoint="/v1/chat/completions",
        batch_id="b",
    )
    assert prepared.most_tokens == expected(len(prepared.prompts[0]))


def test_every_prompt_of_a_completion_has_its_own_answers(bench: Bench) -> None:
    body = {"model": "demo", "prompt": [[40, 41, 42], [43]], "n": 2, "max_tokens": 5}
    prepared = bench.parts.prompts.prepare(
        InputLine(line_no=0, custom_id="c", model="demo", body=body), endpoint="/v1/completions", batch_id="b"
    )
    assert prepared.most_tokens == (3 + 1) + 2 * 2 * 5


def test_no_trace_of_cover_is_left_by_a_batch_that_ends_early(
    bench: Bench,
    host: FakeHost,
    maker: sessionmaker[Session],
    tenant: Tenant,
    submit_valid: SubmitLines,
    line: MakeLine,
) -> None:
    batch_id = submit_valid([line(number) for number in range(4)])
    bench.start(bench.claim())
    host.wait_for(4)
    with maker.begin() as session:
        session.execute(text("UPDATE batch SET state = 'cancelling' WHERE id = :id"), {"id": batch_id})
    bench.join()
    assert bench.rows("SELECT covered_tokens FROM batch UNION SELECT covered_tokens FROM chunk") == [(0,)]


@pytest.mark.parametrize("unit", BudgetUnit)
def test_lines_beyond_a_days_budget_wait_and_go_on_when_the_next_one_begins(
    bench: Bench,
    host: FakeHost,
    maker: sessionmaker[Session],
    storage: Storage,
    tenant: Tenant,
    submit_valid: SubmitLines,
    line: MakeLine,
    unit: BudgetUnit,
) -> None:
    with maker.begin() as session:
        served_models.set_prices(session, "demo", input_price_picos=0, output_price_picos=1_000_000)
        # Money for the maximum answers of two lines; tokens for the use of two short lines.
        amount = 2 * 4 * 1_000_000 if unit is BudgetUnit.MONEY else 60
        wanted = NewBudget(unit=unit, window=BudgetWindow.DAY, limit=amount)
        window_budgets.set_budget(session, tenant.id, wanted)
    submit_valid([line(number) for number in range(8)])
    host.instant = True
    numbers = []
    for _ in range(8):
        work_off(bench)
        numbers.append(len(bench.rows("SELECT line_no FROM result")))
        with maker() as session:
            assert all(found.left >= 0 for found in window_budgets.allowances(session, tenant.id))
        assert clean(maker, storage)
        if numbers[-1] == 8:
            break
        assert "waiting" in [state for state, _ in bench.rows(CHUNKS)]
        with maker.begin() as session:  # a day later
            session.execute(
                text("UPDATE window_budget SET window_start = now() - interval '2 days', window_end = now()")
            )
            session.execute(text("UPDATE ledger SET created_at = created_at - interval '1 day'"))
    assert 0 < numbers[0] < 8
    assert numbers[-1] == 8
    assert numbers == sorted(set(numbers))
