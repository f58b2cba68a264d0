"""Tests of lines that take long to prepare: their lease is held, and nothing waits for cancelled work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text

from engine.structured import StructuredOutput
from jobs.batches import lifecycle
from jobs.lines.reading import InputLine
from jobs.tables import Tenant
from tests.workers.chunks.builders import CHUNKS, RESULTS, Bench, FakeHost, MakeLine, SubmitLines
from workers import structure
from workers.chunks import ends
from workers.chunks.answerer import LONG_LINE_BYTES
from workers.chunks.ends import STALL_SECONDS
from workers.chunks.room import ROOM_BYTES
from workers.prompts import PreparedLine, PromptMaker, Request
from workers.special_tokens import Check


class SlowPrompts(PromptMaker):
    """Starts to make a line's prompt, and continues once it may."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer, max_model_len=512, vocab_size=len(tokenizer))
        self.began, self.may_go_on, self.ended = (threading.Event() for _ in range(3))
        self.was_wanted: bool | None = None

    def prepare(self, line: InputLine, *, is_wanted: Callable[[], bool] = lambda: True, **given: Any) -> PreparedLine:
        self._is_wanted = is_wanted
        return super().prepare(line, is_wanted=is_wanted, **given)

    def _prompts(self, request: Request, check: Check) -> Any:
        self.began.set()
        assert self.may_go_on.wait(20)
        self.was_wanted = self._is_wanted()
        self.ended.set()
        return super()._prompts(request, check)


class LeapingClock:
    """The real clock plus the leaps of a test; `wait_for_looks` waits until it was read so often."""

    def __init__(self) -> None:
        self._ahead_seconds, self._num_looks = 0.0, 0
        self._looked = threading.Condition()

    def __call__(self) -> float:
        with self._looked:
            self._num_looks += 1
            self._looked.notify_all()
            return time.monotonic() + self._ahead_seconds

    def leap(self, seconds: float) -> None:
        with self._looked:
            self._ahead_seconds += seconds

    def wait_for_looks(self, count: int) -> None:
        with self._looked:
            wanted = self._num_looks + count
            assert self._looked.wait_for(lambda: self._num_looks >= wanted, timeout=20)


@pytest.fixture
def slow_prompts(bench: Bench, tokenizer: Any) -> SlowPrompts:
    prompts = SlowPrompts(tokenizer)
    bench.change_parts(prompts=prompts)
    return prompts


def long_line(line: MakeLine) -> dict[str, Any]:
    return line(0, messages=[{"role": "user", "content": "x" * LONG_LINE_BYTES}])


def test_the_lease_is_held_while_a_long_line_is_prepared(
    bench: Bench, slow_prompts: SlowPrompts, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([long_line(line)])
    bench.start(bench.claim())
    assert slow_prompts.began.wait(20)
    bench.age_lease()
    bench.wait_until("SELECT lease_until > now() + interval '10 seconds' FROM chunk", [(True,)])
    slow_prompts.may_go_on.set()
    bench.join()
    assert bench.rows(CHUNKS) == [("done", 1)]
    assert bench.rows(RESULTS) == [(0, 400)]  # longer than the context


def test_the_lease_of_a_line_that_never_gets_prepared_is_left_to_end(
    bench: Bench, slow_prompts: SlowPrompts, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([long_line(line)])
    clock = LeapingClock()
    bench.change_parts(monotonic=clock)
    bench.start(bench.claim())
    assert slow_prompts.began.wait(20)
    clock.leap(STALL_SECONDS + 1)
    clock.wait_for_looks(4)  # an extension in progress has finished
    with bench.maker.begin() as session:
        session.execute(text("UPDATE chunk SET lease_until = now() + interval '5 seconds'"))
    clock.wait_for_looks(4)
    assert bench.rows("SELECT lease_until > now() + interval '10 seconds' FROM chunk") == [(False,)]
    slow_prompts.may_go_on.set()
    bench.join()


def test_the_lease_of_a_line_that_waits_for_room_is_held_however_long(
    bench: Bench, slow_prompts: SlowPrompts, submit_valid: SubmitLines, line: MakeLine
) -> None:
    """Others' long lines may take minutes: lines behind them must not count as lost."""
    submit_valid([long_line(line)])
    clock = LeapingClock()
    bench.change_parts(monotonic=clock)
    with bench.services.room.inside(ROOM_BYTES, is_wanted=lambda: True):
        bench.start(bench.claim())
        bench.wait_until("SELECT started_fence = fence FROM chunk", [(True,)])
        for _ in range(3):
            clock.leap(STALL_SECONDS + 1)
            bench.age_lease()
            bench.wait_until("SELECT lease_until > now() + interval '10 seconds' FROM chunk", [(True,)])
        assert not slow_prompts.began.is_set()
    slow_prompts.may_go_on.set()
    bench.join()
    assert bench.rows(CHUNKS) == [("done", 1)]


def test_a_long_line_of_a_cancelled_batch_is_not_waited_for(
    bench: Bench, slow_prompts: SlowPrompts, submit_valid: SubmitLines, line: MakeLine, tenant: Tenant
) -> None:
    batch_id = submit_valid([long_line(line)])
    bench.start(bench.claim())
    assert slow_prompts.began.wait(20)
    with bench.maker.begin() as session:
        lifecycle.cancel_batch(session, tenant.id, batch_id)
    bench.join()
    assert bench.rows("SELECT state FROM chunk") == [("withdrawn",)]
    slow_prompts.may_go_on.set()
    assert slow_prompts.ended.wait(20)
    assert slow_prompts.was_wanted is False, "it would go on for nobody"


def test_a_worker_that_stops_does_not_wait_for_a_long_line(
    bench: Bench, slow_prompts: SlowPrompts, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([long_line(line)])
    bench.start(bench.claim())
    assert slow_prompts.began.wait(20)
    bench.services.drain.begin(grace_seconds=0)
    bench.join()
    assert bench.rows("SELECT state FROM chunk") == [("ready",)]
    slow_prompts.may_go_on.set()
    assert slow_prompts.ended.wait(20)
    assert slow_prompts.was_wanted is False


def test_a_long_line_waits_for_room_beside_the_others_and_leaves_the_queue_when_cancelled(
    bench: Bench, slow_prompts: SlowPrompts, submit_valid: SubmitLines, line: MakeLine, tenant: Tenant
) -> None:
    with bench.services.room.inside(ROOM_BYTES, is_wanted=lambda: True):
        batch_id = submit_valid([long_line(line)])
        bench.start(bench.claim())
        with bench.maker.begin() as session:
            lifecycle.cancel_batch(session, tenant.id, batch_id)
        bench.join()
        assert bench.rows("SELECT state FROM chunk") == [("withdrawn",)]
    assert not slow_prompts.began.is_set()


class SlowChecks:
    """Replaces llguidance: accepts each grammar once it may."""

    def __init__(self) -> None:
        self.began, self.may_go_on = threading.Event(), threading.Event()

    def __call__(self, _: StructuredOutput) -> None:
        self.began.set()
        assert self.may_go_on.wait(60)


@pytest.fixture
def slow_checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowChecks]:
    checks = SlowChecks()
    monkeypatch.setattr(structure, "check_grammar", checks)
    structure._checks.cache_clear()
    yield checks
    checks.may_go_on.set()
    structure._checks.cache_clear()


def test_lines_before_one_whose_grammar_waits_run_and_the_lease_is_held_meanwhile(
    bench: Bench, host: FakeHost, slow_checks: SlowChecks, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0), line(1, guided_regex="a+"), line(2)])
    bench.start(bench.claim())
    assert slow_checks.began.wait(20)
    host.wait_for(1)
    bench.age_lease()
    bench.wait_until("SELECT lease_until > now() + interval '10 seconds' FROM chunk", [(True,)])
    slow_checks.may_go_on.set()
    host.wait_for(3)
    host.answer(3)
    bench.join()
    assert bench.rows(CHUNKS) == [("done", 1)]


def test_a_line_whose_grammar_waits_is_not_waited_for_when_its_batch_is_cancelled_or_the_worker_stops(
    bench: Bench, slow_checks: SlowChecks, submit_valid: SubmitLines, line: MakeLine, tenant: Tenant
) -> None:
    batch_id = submit_valid([line(0, guided_regex="a+")])
    bench.start(bench.claim())
    assert slow_checks.began.wait(20)
    with bench.maker.begin() as session:
        lifecycle.cancel_batch(session, tenant.id, batch_id)
    bench.join()
    submit_valid([line(number, guided_regex="a+") for number in range(2)])
    bench.start(bench.claim())
    bench.wait_until("SELECT count(started_fence)::int FROM chunk", [(2,)])
    bench.services.drain.begin(grace_seconds=0)
    bench.join()
    assert bench.rows("SELECT state FROM chunk ORDER BY id") == [("withdrawn",), ("ready",)]


def test_short_lines_with_a_grammar_start_no_thread_of_their_own(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    class Counted(ThreadPoolExecutor):
        def __init__(self, max_workers: int, thread_name_prefix: str) -> None:
            started.append(thread_name_prefix)
            super().__init__(max_workers, thread_name_prefix)

    monkeypatch.setattr(ends, "ThreadPoolExecutor", Counted)
    submit_valid([line(number, guided_regex="a+") for number in range(4)])
    host.instant = True
    bench.start(bench.claim())
    bench.join()
    assert bench.rows(RESULTS) == [(number, 200) for number in range(4)]
    assert len(started) == 1, "to read the lines, and none for each of them"


def test_a_long_line_leaves_its_room_to_others_while_its_grammar_waits_for_a_turn(
    bench: Bench, host: FakeHost, slow_checks: SlowChecks, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0, guided_regex="a+", user="u" * LONG_LINE_BYTES)])
    bench.start(bench.claim())
    assert slow_checks.began.wait(20)
    looks = iter(range(50))  # each a fifth of a second
    try:
        with bench.services.room.inside(ROOM_BYTES, is_wanted=lambda: next(looks, None) is not None):
            pass
    finally:
        slow_checks.may_go_on.set()
    host.wait_for(1)
    host.answer(1)
    bench.join()
    assert bench.rows(RESULTS) == [(0, 200)]
