"""Tests of prompts' log-probabilities, which are large: a worker holds a limited number, and no line fails or hangs."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from jobs.batches import lifecycle
from jobs.tables import Tenant
from tests.workers.chunks.builders import CHUNKS, RESULTS, Bench, FakeHost, MakeLine, SubmitLines
from workers.chunks.scores import ChunkScores, ScoreRoom


@pytest.fixture(params=[True, False], ids=["with a budget", "without a limit"])
def bench(bench: Bench, tenant: Tenant, request: pytest.FixtureRequest) -> Bench:
    if not request.param:
        with bench.maker.begin() as session:
            session.execute(text("UPDATE budget SET limit_tokens = NULL"))
    bench.change_parts(scores=ScoreRoom(300))
    return bench


def scored(line: MakeLine, number: int) -> dict[str, Any]:
    """Make a line that requests some 200 of them."""
    return line(number, messages=[{"role": "user", "content": "Hello " * 20}], prompt_logprobs=7)


def test_lines_run_one_by_one_where_there_is_room_for_one_only_and_others_beside_them(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([scored(line, 0), scored(line, 1), line(2)])
    bench.start(bench.claim())
    host.wait_for(2)
    assert len(host.waiting) == 2, "one of them, and the one that asks for nothing"
    host.answer(1)
    host.wait_for(3)
    assert bench.rows(RESULTS) == [(0, 200)], "it is stored before the next one begins"
    host.answer(2)
    bench.join()
    assert bench.rows(RESULTS) == [(0, 200), (1, 200), (2, 200)]
    assert bench.parts.scores.enter(300), "all of it was given back"


def test_a_chunk_waits_with_its_lease_while_another_has_the_room(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([scored(line, 0)])
    assert bench.parts.scores.enter(250)
    bench.start(bench.claim())
    bench.wait_until("SELECT started_fence = fence FROM chunk", [(True,)])
    for _ in range(3):
        bench.age_lease()
        bench.wait_until("SELECT lease_until > now() + interval '10 seconds' FROM chunk", [(True,)])
    assert not host.waiting
    bench.parts.scores.leave(250)
    host.wait_for(1)
    host.answer(1)
    bench.join()
    assert bench.rows(CHUNKS) == [("done", 1)]


def test_a_chunk_that_waits_for_room_is_given_back_by_a_worker_that_stops(
    bench: Bench, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([scored(line, 0)])
    assert bench.parts.scores.enter(250)
    bench.start(bench.claim())
    bench.wait_until("SELECT started_fence = fence FROM chunk", [(True,)])
    bench.services.drain.begin(grace_seconds=0)
    bench.join()
    assert bench.rows("SELECT state FROM chunk") == [("ready",)]
    bench.parts.scores.leave(250)
    assert bench.parts.scores.enter(300), "it waits no more"


def test_a_chunk_that_waits_for_room_ends_with_its_batch(
    bench: Bench, submit_valid: SubmitLines, line: MakeLine, tenant: Tenant
) -> None:
    batch_id = submit_valid([scored(line, 0)])
    assert bench.parts.scores.enter(250)
    bench.start(bench.claim())
    bench.wait_until("SELECT started_fence = fence FROM chunk", [(True,)])
    with bench.maker.begin() as session:
        lifecycle.cancel_batch(session, tenant.id, batch_id)
    bench.join()
    assert bench.rows("SELECT state FROM chunk") == [("withdrawn",)]
    bench.parts.scores.leave(250)
    assert bench.parts.scores.enter(300), "it waits no more"


def test_who_needs_nearly_all_the_room_has_it_before_those_who_came_later() -> None:
    room = ScoreRoom(300)
    first, large, later = (ChunkScores(room) for _ in range(3))
    assert first.enter(0, 100)
    assert not large.enter(0, 250)
    assert not first.enter(1, 100), "it would go on for ever with lines like this"
    assert not later.enter(0, 100)
    first.leave([0])
    assert not later.enter(0, 100), "an older one has not looked yet"
    assert later.enter(1, 50) is False, "nor does a smaller line pass its elders"
    assert large.enter(0, 250)
    large.leave_all()
    assert later.enter(0, 100), "beside what the first one still waits for"
    assert first.enter(1, 100)


def test_whose_chunk_is_over_waits_no_more() -> None:
    room = ScoreRoom(300)
    first, large, later = (ChunkScores(room) for _ in range(3))
    assert first.enter(0, 100)
    assert not large.enter(0, 250)
    assert not later.enter(0, 100)
    large.leave_all()
    assert later.enter(0, 100)


def test_what_an_older_one_does_not_need_is_free_for_others() -> None:
    room = ScoreRoom(300)
    first, large, later = (ChunkScores(room) for _ in range(3))
    assert first.enter(0, 100)
    assert not large.enter(0, 250)
    first.leave([0])
    assert later.enter(0, 50)
    assert large.enter(0, 250)
