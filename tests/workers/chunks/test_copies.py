"""Tests of lines that differ only in their custom_id: computed once, answered each, billed once, despite crashes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import tenants
from jobs.audit.audit import audit
from jobs.batches import lifecycle
from jobs.chunks import originals
from jobs.engines.engine import ServingEngine
from jobs.settings import Settings
from jobs.tables import Tenant
from tests.workers.chunks.builders import CHUNKS, RESULTS, Bench, FakeHost, MakeLine, SubmitLines
from workers.answers import AnswerMaker

BILLED = "SELECT line_no, output_tokens::int FROM result ORDER BY line_no"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Limit a chunk to three lines."""
    return settings.model_copy(update={"chunk_lines": 3})


@pytest.fixture
def same(line: MakeLine) -> Callable[..., dict[str, Any]]:
    """Make greedy lines with the same request; keywords as of `line`."""

    def make(number: int, **body: Any) -> dict[str, Any]:
        asked = {"messages": [{"role": "user", "content": "Again"}], "temperature": 0}
        return line(number, **(asked | body))

    return make


def answers(bench: Bench) -> list[dict[str, Any]]:
    return [orjson.loads(row.line) for row in _lines(bench)]


def _lines(bench: Bench) -> list[Any]:
    with bench.maker() as session:
        return list(session.execute(text("SELECT line FROM result ORDER BY line_no")).all())


def run_all(bench: Bench, count: int) -> None:
    for _ in range(count):
        bench.start(bench.claim())
        bench.join()


def test_identical_greedy_lines_are_computed_once_and_each_has_its_answer(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, same: MakeLine, line: MakeLine
) -> None:
    batch_id = submit_valid([same(0), line(1), same(2), same(3), same(4), line(5, seed=7), line(6, seed=7)])
    host.instant = True
    run_all(bench, 3)
    assert bench.rows(RESULTS) == [(number, 200) for number in range(7)]
    assert len(host.prompts) == 4, "line 0 for 2, 3 and 4; line 1; two lines with a seed and different prompts"
    found = answers(bench)
    assert [answer["custom_id"] for answer in found] == [f"c{number}" for number in range(7)]
    first, copies = found[0], [found[number] for number in (2, 3, 4)]
    for copy in copies:
        body, original = copy["response"]["body"], first["response"]["body"]
        assert body["choices"] == original["choices"]
        assert body["usage"] == {
            "prompt_tokens": 0,
            "completion_tokens": 0,
            "total_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
            "copy_of": "c0",
        }
    ids = [(each["id"], each["response"]["request_id"], each["response"]["body"]["id"]) for each in found]
    assert len({part for each in ids for part in each}) == 3 * 7
    assert bench.rows(BILLED) == [(0, 2), (1, 2), (2, 0), (3, 0), (4, 0), (5, 2), (6, 2)]
    assert bench.rows("SELECT num_completed::int, num_truncated::int, output_tokens::int FROM batch") == [(7, 7, 8)]
    with bench.maker() as session:
        assert audit(session, batch_id=batch_id) == []


def test_lines_whose_answers_are_drawn_or_that_differ_are_each_computed(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, same: MakeLine
) -> None:
    submit_valid([same(0, temperature=1), same(1, temperature=1), same(2)])
    submit_valid([same(0, max_tokens=5), same(1, max_tokens=6), same(2, max_tokens=7)])
    host.instant = True
    run_all(bench, 2)
    assert len(host.prompts) == 6


def test_long_answers_are_computed_and_billed_for_each_line(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, same: MakeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_valid([same(number) for number in range(6)])
    monkeypatch.setattr(originals, "MAX_COPIED_BYTES", 20)
    host.instant = True
    run_all(bench, 1)
    host.instant = False
    bench.start(bench.claim())
    host.wait_for(6)  # all three of the second chunk before one of them is answered: none waits for another
    host.answer(3)
    bench.join()
    assert bench.rows(BILLED) == [(number, 2) for number in range(6)]


def test_an_answer_is_shared_within_one_kind_of_engine_and_data_type(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, same: MakeLine, tokenizer: Any
) -> None:
    """The second chunk has one line computed for its three; each answer names the engine that gave it."""
    submit_valid([same(number) for number in range(6)])
    host.instant = True
    for dtype in ("float32", "bfloat16"):
        engine = ServingEngine(version="0.2.0", dtype=dtype)
        bench.change_parts(engine=engine, answers=AnswerMaker(tokenizer, model="demo", engine=engine))
        run_all(bench, 1)
    named = [answer["response"]["body"]["engine"] for answer in answers(bench)]
    assert [one["dtype"] for one in named] == ["float32"] * 3 + ["bfloat16"] * 3
    assert named[0] == {"name": "tokenmill", "version": "0.2.0", "dtype": "float32"}
    assert len(host.prompts) == 2


def test_no_answer_goes_to_another_batch_or_tenant(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, same: MakeLine, maker: sessionmaker[Session]
) -> None:
    with maker.begin() as session:
        other = tenants.create_tenant(session, "other")
    submit_valid([same(0), same(1)])
    submit_valid([same(0), same(1)])
    submit_valid([same(0), same(1)], tenant=other)
    host.instant = True
    run_all(bench, 3)
    assert len(host.prompts) == 3
    computed = "SELECT count(*)::int FROM result WHERE output_tokens > 0 GROUP BY batch_id"
    assert bench.rows(computed) == [(1,), (1,), (1,)]


def test_a_copy_waits_while_another_chunk_runs_its_original(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, same: MakeLine, line: MakeLine
) -> None:
    bench.change_parts(monotonic=lambda: 0.0)  # however long it takes
    submit_valid([same(0), line(1), line(2), same(3), same(4), line(5)])
    first, second = Bench(bench.parts, bench.maker), Bench(bench.parts, bench.maker)
    first.start(first.claim())
    host.wait_for(3)
    second.start(second.claim())
    host.wait_for(4)
    host.answer(4)
    first.join()
    second.join()
    assert len(host.prompts) == 4
    assert bench.rows(CHUNKS) == [("done", 1), ("done", 1)]
    assert bench.rows(BILLED) == [(0, 2), (1, 2), (2, 2), (3, 0), (4, 0), (5, 2)]


def test_copies_wait_ten_seconds_and_then_one_of_them_runs_itself_for_all_of_its_chunk(
    bench: Bench,
    host: FakeHost,
    submit_valid: SubmitLines,
    same: MakeLine,
    line: MakeLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks, find = threading.Semaphore(0), originals.find

    def count(*given: Any, line_nos: Sequence[int]) -> list[originals.Original]:
        looks.release()
        return find(*given, line_nos=line_nos)

    def look_thrice() -> None:
        assert all(looks.acquire(timeout=20) for _ in range(3))

    monkeypatch.setattr(originals, "find", count)
    batch_id = submit_valid([same(0), line(1), line(2), same(3), same(4)])
    first, second = Bench(bench.parts, bench.maker), Bench(bench.parts, bench.maker)
    now = 0.0
    second.change_parts(monotonic=lambda: now)
    first.start(first.claim())
    host.wait_for(3)
    second.start(second.claim())
    look_thrice()
    now = 9.9
    look_thrice()
    assert len(host.prompts) == 3
    now = 10.0
    host.wait_for(4)
    assert host.prompts[3] == host.prompts[0]
    host.answer(4)
    second.join()
    first.join()
    assert bench.rows(CHUNKS) == [("done", 1), ("done", 1)]
    assert bench.rows(BILLED) == [(0, 2), (1, 2), (2, 2), (3, 2), (4, 0)]
    with bench.maker() as session:
        assert audit(session, batch_id=batch_id) == []


def test_a_copy_whose_original_failed_or_waits_for_a_worker_is_computed_itself_once_for_all(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, same: MakeLine, line: MakeLine
) -> None:
    submit_valid([same(0), same(1), line(2), same(3), same(4), line(5)])
    bench.start(bench.claim())
    host.wait_for(2)
    host.answer(2, error="the engine cannot")
    host.wait_for(3)  # line 1, now for itself
    host.answer(1)
    bench.join()
    host.instant = True
    run_all(bench, 1)
    assert bench.rows(RESULTS) == [(0, None), (1, 200), (2, None), (3, 200), (4, 200), (5, 200)]
    assert bench.rows(BILLED) == [(0, 0), (1, 2), (2, 0), (3, 2), (4, 0), (5, 2)]


def test_copies_of_what_failed_twice_are_not_tried_one_a_round(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, same: MakeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_for = []
    find = originals.find

    def count(*given: Any, line_nos: Sequence[int]) -> list[originals.Original]:
        looked_for.append(list(line_nos))
        return find(*given, line_nos=line_nos)

    monkeypatch.setattr(originals, "find", count)
    # the template does not support tools: each line is refused
    tools = [{"type": "function", "function": {"name": "f"}}]
    submit_valid([same(number, tools=tools) for number in range(6)])
    run_all(bench, 2)
    assert host.prompts == []
    assert bench.rows(RESULTS) == [(number, 400) for number in range(6)]
    assert looked_for == [[0], [1], [0], [3]], "in each of two chunks the first copy, then all the others"


def test_a_chunk_whose_worker_dies_before_the_copies_are_written_ends_with_each_answer_once(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, same: MakeLine, line: MakeLine
) -> None:
    bench.change_parts(monotonic=lambda: 0.0)  # however long it takes
    batch_id = submit_valid([line(0), same(1), same(2), same(3), same(4), line(5)])
    first, second = Bench(bench.parts, bench.maker), Bench(bench.parts, bench.maker)
    first.start(first.claim())
    host.wait_for(2)
    second.start(second.claim())  # lines 3 and 4 wait for line 1
    host.wait_for(3)
    host.answer(3)  # of lines 0, 1 and 5
    with bench.maker.begin() as session:  # what is not written by now is lost, as by a kill
        session.execute(text("UPDATE chunk SET fence = fence + 1, state = 'ready', worker_id = NULL"))
    first.join()
    second.join()
    host.instant = True
    run_all(bench, 2)
    assert bench.rows(RESULTS) == [(number, 200) for number in range(6)]
    billed = dict(bench.rows(BILLED))
    assert billed[1] == 2
    assert [billed[number] for number in (2, 3, 4)] == [0, 0, 0]
    with bench.maker() as session:
        assert audit(session, batch_id=batch_id) == []


def test_copies_of_a_cancelled_batch_are_dropped(
    bench: Bench,
    host: FakeHost,
    submit_valid: SubmitLines,
    same: MakeLine,
    line: MakeLine,
    tenant: Tenant,
) -> None:
    batch_id = submit_valid([same(0), line(1), line(2), same(3)])
    first, second = Bench(bench.parts, bench.maker), Bench(bench.parts, bench.maker)
    first.start(first.claim())
    host.wait_for(3)
    second.start(second.claim())
    with bench.maker.begin() as session:
        lifecycle.cancel_batch(session, tenant.id, batch_id)
    first.join()
    second.join()
    assert bench.rows(RESULTS) == []
    assert bench.rows("SELECT state FROM chunk ORDER BY id") == [("withdrawn",), ("withdrawn",)]
