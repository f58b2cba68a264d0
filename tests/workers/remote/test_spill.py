"""Tests of lines that a server outside the house answers: what they cost, and that no budget of a day is passed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import text

from jobs.accounts import budgets
from jobs.audit.audit import audit
from jobs.batches.lost_leases import reap_expired
from jobs.tables import Tenant
from tests.workers.remote.builders import Post
from tests.workers.remote.fake_server import FakeServer
from tests.workers.remote.spilling import (
    HUGE,
    MOST,
    PAID,
    PATIENT,
    MakeLine,
    SubmitLines,
    TenTokens,
    paid,
    run_while_any,
    spill,
    used,
)
from workers.chunks.run import ChunkRun
from workers.remote.calls import caller as calling


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is busy for longer than lines wait here would be away."""
    monkeypatch.setattr(calling, "_FIRST_COOL_DOWN_SECONDS", 0.02)


@pytest.fixture
def other(server: FakeServer, post: Post) -> Iterator[Post]:
    """A second worker of the same server."""
    other = Post(server.url, post.maker, post.services.storage, post.settings, worker_id="w2")
    yield other
    other.close()


def test_the_ledger_has_what_lines_cost_outside_and_results_name_it(
    post: Post, submit_late: SubmitLines, line: MakeLine
) -> None:
    submit_late([line(number) for number in range(4)])
    post.open(spill=spill(10**6))
    assert post.run_next()
    assert (used(post), paid(post)) == (4 * PAID, 4 * PAID)
    assert post.bodies()["c1"]["engine"] == {"name": "vllm", "version": "9.9", "is_outside": True}
    assert post.rows("SELECT num_spilled FROM batch") == [(4,)]
    assert post.billed() == (28, 8)


def test_answers_of_the_house_cost_nothing_outside(post: Post, submit_valid: SubmitLines, line: MakeLine) -> None:
    submit_valid([line(1)])
    assert post.run_next()
    assert post.rows("SELECT spill_picos FROM ledger") == [(None,)]
    assert used(post) == 0
    assert "is_outside" not in post.bodies()["c1"]["engine"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("behaviour", "cost", "is_answered"),
    [
        ("good", PAID, True),
        ("no-usage", MOST, False),
        ("huge-usage", HUGE, False),
        ("few-choices 2", 3 * PAID, True),
        ("half 1", MOST + PAID, True),
        ("429-soon 2", PAID, True),
        ("504 1", MOST + PAID, True),
        ("400", 0, False),
    ],
)
def test_a_line_costs_what_the_server_counted_and_the_most_where_it_did_not(
    post: Post,
    server: FakeServer,
    submit_late: SubmitLines,
    line: MakeLine,
    behaviour: str,
    cost: int,
    *,
    is_answered: bool,
) -> None:
    content = "Hello" if behaviour == "good" else f"misbehave {behaviour}"
    submit_late([line(0, messages=[{"role": "user", "content": content}])])
    post.open(spill=spill(10**6))
    assert post.run_next()
    assert bool(post.bodies_of(200)) == is_answered
    assert used(post) == paid(post)
    if cost in (MOST, MOST + PAID):
        assert 512 * 3 < used(post) <= cost
    else:
        assert used(post) == cost


def test_lines_beyond_the_budget_are_left_to_the_house(
    post: Post, server: FakeServer, submit_late: SubmitLines, line: MakeLine
) -> None:
    submit_late([line(number) for number in range(8)])
    budget = 2 * MOST
    post.open(spill=spill(budget))
    run_while_any(post)
    assert used(post) == paid(post) <= budget
    num_asked = sum(server.num_asked.values())
    assert 2 <= num_asked <= 8
    server.num_asked.clear()
    post.close()
    post.open()
    run_while_any(post)
    assert sum(server.num_asked.values()) == 8 - num_asked
    assert post.rows("SELECT num_completed, num_spilled FROM batch") == [(8, num_asked)]


def test_nothing_is_asked_without_room_for_a_line(
    post: Post, server: FakeServer, submit_late: SubmitLines, line: MakeLine
) -> None:
    submit_late([line(number) for number in range(4)])
    post.open(spill=spill(100))
    run_while_any(post)
    assert (sum(server.num_asked.values()), used(post), paid(post)) == (0, 0, 0)
    assert post.rows("SELECT state FROM chunk") == [("ready",)]


@pytest.mark.usefixtures("quick")
def test_a_line_is_asked_again_only_within_the_budget(
    post: Post, server: FakeServer, submit_late: SubmitLines, line: MakeLine
) -> None:
    submit_late([line(0, messages=[{"role": "user", "content": "misbehave half"}])])
    post.open(spill=spill(2 * MOST))
    run_while_any(post)
    assert server.num_asked["misbehave half"] == 2
    assert used(post) == paid(post) <= 2 * MOST
    assert post.rows("SELECT state FROM chunk") == [("ready",)]
    assert post.results() == {}


def test_lines_that_were_not_sent_when_a_worker_drains_cost_nothing(
    post: Post, server: FakeServer, submit_late: SubmitLines, line: MakeLine
) -> None:
    submit_late([line(number, messages=[{"role": "user", "content": f"misbehave hang {number}"}]) for number in (1, 2)])
    post.open(spill=spill(10**6), seats=1)
    running = post.begin_next()
    server.wait_for(lambda: sum(server.num_asked.values()) == 1)
    post.drain.begin(0)
    running.join(20)
    assert 512 * 3 < used(post) <= MOST


def test_answers_that_come_after_those_of_another_engine_are_paid_in_vain_and_stand_in_the_books(
    post: Post, submit_late: SubmitLines, line: MakeLine
) -> None:
    submit_late([line(number) for number in range(2)])
    answerer = post.open(spill=spill(10**6), patience=PATIENT)
    lines = answerer.open(post.claim())
    with post.maker.begin() as session:
        session.execute(text("UPDATE batch SET engine = 'tokenmill', engine_choice = 'same'"))
    assert not ChunkRun(lines, post.services).run()
    assert used(post) == paid(post) == 2 * PAID
    wasted = "SELECT sum(wasted_input_tokens)::int, sum(wasted_output_tokens)::int, sum(num_results)::int FROM ledger"
    assert post.rows(wasted) == [(14, 4, 0)]
    assert post.rows("SELECT state FROM chunk") == [("ready",)]
    assert post.results() == {}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("question", "limit"), [("Hello", 2100), ("Hello " * 250, 2500)])
def test_what_was_paid_without_a_result_stands_in_the_books_of_a_chunk_that_waits_for_its_tenants_budget(
    post: Post, submit_late: SubmitLines, line: MakeLine, tenant: Tenant, question: str, limit: int
) -> None:
    """Its cover is free for the next line before the chunk waits."""
    with post.maker.begin() as session:
        budgets.set_limit(session, tenant.id, limit)
    messages = [[{"role": "user", "content": each}] for each in ("misbehave half", question)]
    submit_late([line(number, messages=each, max_tokens=1000) for number, each in enumerate(messages)])
    post.open(spill=spill(2 * (MOST + 1000 * 5) - 1))
    run_while_any(post)
    assert 0 < used(post) == paid(post)


@pytest.mark.usefixtures("quick")
def test_the_budget_holds_with_two_workers_at_once_and_one_that_dies(
    post: Post, other: Post, server: FakeServer, submit_late: SubmitLines, line: MakeLine
) -> None:
    """Both claim and ask at the same time, some answers break, and the first loses its leases as if it was killed."""
    lines = [line(number) for number in range(60)]
    for number in range(0, 60, 7):
        lines[number] = line(number, messages=[{"role": "user", "content": f"misbehave half 1 {number}"}])
    submit_late(lines)
    budget = 12 * MOST
    for each in (post, other):
        each.open(spill=spill(budget))
    dying = post.claim()
    assert post.answerer is not None
    lost = post.answerer.open(dying)
    assert lost._spending.reserve([TenTokens(number) for number in range(4)]) == [True] * 4
    workers = [threading.Thread(target=run_while_any, args=(each,)) for each in (post, other)]
    for worker in workers:
        worker.start()
    with post.maker.begin() as session:
        session.execute(text("UPDATE chunk SET lease_until = now() - interval '1 second' WHERE worker_id = 'w'"))
        reap_expired(session, lease=timedelta(0))
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    assert used(post) <= budget
    lost_picos = 4 * (10 * 3 + 10 * 5)
    assert 0 < paid(post) <= used(post) - lost_picos
    asked = sum(server.num_asked.values()) - server.num_asked["Say ok."]
    assert asked * PAID <= used(post) - lost_picos, "what the server computed is never more than what was counted"
    with post.maker() as session:
        assert audit(session, storage=post.services.storage) == []
