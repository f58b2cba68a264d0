"""A claimed chunk from first line to last, on a real database, with an engine that answers on command."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import make_url, text

from engine.process.messages import FinishReason, TokenDelta
from engine.scheduling.request import NewRequest
from jobs.batches import lifecycle
from jobs.database import connect, sessions
from jobs.errors import ServiceError
from jobs.lines.bodies import COMPLETION_ENDPOINT
from jobs.lines.reading import InputLine
from jobs.storage import Storage
from jobs.tables import Batch, Tenant
from tests.s3_server import Mood, S3Server
from tests.workers.chunks.builders import CHUNKS, Bench, FakeHost
from workers.answers import Answer, AnswerMaker
from workers.chunks.ends import STALL_SECONDS
from workers.chunks.feeder import LONG_LINE_BYTES
from workers.chunks.parts import WorkerParts
from workers.chunks.room import ROOM_BYTES
from workers.drain import Drain
from workers.engine_host import Owner
from workers.line_run import LineRun
from workers.prompts import PreparedLine, PromptMaker

KEPT = "SELECT line_no, token_ids FROM checkpoint ORDER BY line_no"
RESULTS = "SELECT line_no, status_code FROM result ORDER BY line_no"
BILLED = """
    SELECT count(*) FILTER (WHERE output_tokens > 0)::int, coalesce(sum(output_tokens), 0)::int FROM result
    WHERE (SELECT sum(output_tokens) FROM ledger) = (SELECT sum(output_tokens) FROM result)
"""

MakeLine = Callable[..., dict[str, Any]]
SubmitLines = Callable[..., str]


def test_a_chunk_runs_to_its_end_and_every_line_is_billed_once(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(number) for number in range(4)])
    host.instant = True
    bench.start(bench.claim())
    bench.join()
    assert bench.rows(CHUNKS) == [("done", 1)]
    assert bench.rows(RESULTS) == [(number, 200) for number in range(4)]
    assert bench.rows(BILLED) == [(4, 8)]


def test_lines_that_have_a_result_are_not_run_again(
    bench: Bench, host: FakeHost, drain: Drain, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(number) for number in range(4)])
    bench.start(bench.claim())
    host.wait_for(4)
    host.answer(3)
    bench.wait_until("SELECT count(*)::int FROM result", [(3,)])
    drain.begin(0)
    bench.join()
    assert bench.rows("SELECT state, losses FROM chunk") == [("ready", 0)], "given back, which is no loss"
    assert len(host.aborted) == 1

    bench.parts = WorkerParts(**{**_fields(bench.parts), "drain": Drain()})
    host.instant = True
    bench.start(bench.claim())
    bench.join()
    assert len(host.prompts) == 5, "four the first time, the missing one the second time"
    assert bench.rows(BILLED) == [(4, 8)]


def test_a_drained_line_goes_on_after_the_tokens_it_had(
    bench: Bench, host: FakeHost, drain: Drain, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0, stop="never"), line(1, n=2), line(2, logprobs=True)])
    bench.start(bench.claim())
    host.wait_for(3)
    host.generate(50, 51, 52)
    drain.begin(0)
    bench.join()
    assert bench.rows(KEPT) == [(0, [50, 51, 52])], "several choices and log-probabilities are computed again"

    bench.parts = WorkerParts(**{**_fields(bench.parts), "drain": Drain()})
    bench.start(bench.claim())
    host.wait_for(6)
    request, owner = host.waiting[3]
    assert request.output_token_ids == [50, 51, 52]
    owner.receive(TokenDelta(request_id=3, token_ids=[53]))
    owner.start_over()  # the engine died: the request runs again from where it was submitted
    owner.receive(TokenDelta(request_id=3, token_ids=[54], finish_reason=FinishReason.LENGTH))
    bench.wait_until("SELECT line_no, output_tokens FROM result", [(0, 4)])
    for request_id in (4, 5):
        host.waiting[request_id][1].receive(
            TokenDelta(request_id=request_id, finish_reason=FinishReason.ERROR, error="x")
        )
    bench.join()
    assert bench.rows(CHUNKS) == [("done", 2)]


def test_a_second_drain_keeps_the_longer_output(
    bench: Bench, host: FakeHost, drain: Drain, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0)])
    for expected in ([50], [50, 50]):
        drain = Drain()
        bench.parts = WorkerParts(**{**_fields(bench.parts), "drain": drain})
        bench.start(bench.claim())
        host.wait_for(len(expected))
        host.generate(50)
        drain.begin(0)
        bench.join()
        assert bench.rows(KEPT) == [(0, expected)]


def test_output_of_another_model_is_not_gone_on_with(
    bench: Bench, host: FakeHost, drain: Drain, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0)])
    bench.start(bench.claim())
    host.wait_for(1)
    host.generate(50)
    drain.begin(0)
    bench.join()
    bench.parts = WorkerParts(**{**_fields(bench.parts), "drain": Drain(), "model_fingerprint": "other weights"})
    bench.start(bench.claim())
    host.wait_for(2)
    assert host.waiting[1][0].output_token_ids == ()
    host.answer(1)
    bench.join()
    assert bench.rows("SELECT output_tokens FROM result") == [(2,)]


def test_a_resumed_line_that_the_engine_refuses_runs_once_more_from_its_prompt(
    bench: Bench, host: FakeHost, drain: Drain, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0), line(1)])
    bench.start(bench.claim())
    host.wait_for(2)
    host.generate(50)
    drain.begin(0)
    bench.join()
    bench.parts = WorkerParts(**{**_fields(bench.parts), "drain": Drain()})
    bench.start(bench.claim())
    host.wait_for(4)
    host.answer(2, error="output_token_ids has 50; ids run from 0 to 9.")
    host.wait_for(6)
    assert [request.output_token_ids for request, _ in host.waiting.values()] == [(), ()]
    host.answer(1)
    host.answer(1, error="it does not fit")
    bench.join()
    assert [status for _, status in bench.rows(RESULTS)] == [200, None]


def test_a_body_that_cannot_be_run_is_its_lines_error_and_is_not_billed(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0), line(1, tools=[{}]), line(2, max_tokens=100_000), line(3)])
    host.instant = True
    bench.start(bench.claim())
    bench.join()
    assert bench.rows(RESULTS) == [(0, 200), (1, 400), (2, 400), (3, 200)]
    assert bench.rows(BILLED) == [(2, 4)]
    (written,) = bench.rows("SELECT line FROM result WHERE line_no = 1")
    assert json.loads(written[0])["response"]["body"]["error"]["param"] == "tools[0].type"


def test_a_failure_of_the_engine_is_its_lines_error_and_is_not_billed(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0), line(1)])
    bench.start(bench.claim())
    host.wait_for(2)
    host.answer(1, error="it does not fit")
    host.answer(1)
    bench.join()
    assert bench.rows(RESULTS) == [(0, None), (1, 200)]
    assert bench.rows(BILLED) == [(1, 2)]


def failed_lines(bench: Bench) -> list[tuple[int, str]]:
    rows = bench.rows("SELECT line_no, line FROM result WHERE status_code IS NULL ORDER BY line_no")
    return [(line_no, json.loads(written)["error"]["message"]) for line_no, written in rows]


def test_a_line_that_cannot_be_prepared_for_a_reason_of_ours_fails_alone(
    bench: Bench,
    host: FakeHost,
    submit_valid: SubmitLines,
    line: MakeLine,
    tokenizer: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(PromptMaker):
        def prepare(self, line: InputLine, **where: Any) -> PreparedLine:
            if line.line_no == 1:
                raise LookupError("no such table")
            return super().prepare(line, **where)

    batch_id = submit_valid([line(number) for number in range(3)])
    prompts = Broken(tokenizer, max_model_len=512, vocab_size=len(tokenizer))
    bench.parts = WorkerParts(**{**_fields(bench.parts), "prompts": prompts})
    host.instant = True
    bench.start(bench.claim())
    bench.join()
    assert bench.rows(RESULTS) == [(0, 200), (1, None), (2, 200)]
    assert bench.rows(BILLED) == [(2, 4)]
    ((line_no, message),) = failed_lines(bench)
    assert line_no == 1
    assert "LookupError" in message
    assert f"batch_id={batch_id} line_no=1" in caplog.text


def test_a_line_that_the_engine_process_cannot_be_sent_fails_alone(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    class Picky(FakeHost):
        def submit(self, new: NewRequest, owner: Owner) -> None:
            if len(self.prompts) == 1:
                self.prompts.append([])
                raise OverflowError("too large for a message")
            super().submit(new, owner)

    submit_valid([line(number) for number in range(3)])
    bench.parts = WorkerParts(**{**_fields(bench.parts), "host": Picky(instant=True)})
    bench.start(bench.claim())
    bench.join()
    assert bench.rows(RESULTS) == [(0, 200), (1, None), (2, 200)]


def test_an_answer_that_cannot_be_made_fails_its_line_alone(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine, tokenizer: Any
) -> None:
    class Broken(AnswerMaker):
        def make(self, run: LineRun, *, response_id: str, created: int) -> Answer:
            if run.prepared.line.line_no == 1:
                raise TypeError("not a token")
            return super().make(run, response_id=response_id, created=created)

    submit_valid([line(number) for number in range(3)])
    bench.parts = WorkerParts(**{**_fields(bench.parts), "answers": Broken(tokenizer, model="demo")})
    host.instant = True
    bench.start(bench.claim())
    bench.join()
    assert bench.rows(RESULTS) == [(0, 200), (1, None), (2, 200)]
    assert bench.rows(BILLED) == [(2, 4)]
    ((_, message),) = failed_lines(bench)
    assert "TypeError" in message


def test_a_worker_that_lost_its_lease_writes_nothing_and_stops(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0), line(1)])
    bench.start(bench.claim())
    host.wait_for(2)
    with bench.maker.begin() as session:
        session.execute(text("UPDATE chunk SET fence = fence + 1"))
    host.answer(1)
    bench.join()
    assert bench.rows(RESULTS) == []
    assert host.aborted == [1]
    assert bench.rows(CHUNKS) == [("leased", 2)], "it belongs to another worker now"


def test_cancelling_stops_the_engine_and_keeps_what_was_finished(
    bench: Bench,
    host: FakeHost,
    submit_valid: SubmitLines,
    line: MakeLine,
    tenant: Tenant,
    read_batch: Callable[[str], Batch],
) -> None:
    batch_id = submit_valid([line(number) for number in range(4)])
    bench.start(bench.claim())
    host.wait_for(4)
    host.answer(1)
    bench.wait_until("SELECT count(*)::int FROM result", [(1,)])
    with bench.maker.begin() as session:
        lifecycle.cancel_batch(session, tenant.id, batch_id)
    bench.join()
    assert sorted(host.aborted) == [1, 2, 3]
    assert bench.rows("SELECT state FROM chunk") == [("withdrawn",)]
    assert read_batch(batch_id).num_completed == 1


def test_the_lease_is_held_while_the_engine_moves_and_left_to_end_when_it_does_not(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine, drain: Drain
) -> None:
    submit_valid([line(0)])
    bench.start(bench.claim())
    host.wait_for(1)
    lease = "SELECT lease_until > now() + interval '10 seconds' FROM chunk"
    bench.age_lease()
    bench.wait_until(lease, [(True,)])
    host.silence = STALL_SECONDS + 1
    host.wait_for_silent_checks(1)  # a heartbeat that was under way has landed
    with bench.maker.begin() as session:
        session.execute(text("UPDATE chunk SET lease_until = now() + interval '5 seconds'"))
    host.wait_for_silent_checks(3)
    assert bench.rows(lease) == [(False,)]
    host.answer(1)
    bench.join()


class SlowPrompts(PromptMaker):
    """Begins to prepare a line, and goes on once it may."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer, max_model_len=512, vocab_size=len(tokenizer))
        self.began, self.may_go_on, self.ended = (threading.Event() for _ in range(3))
        self.was_wanted: bool | None = None

    def prepare(
        self,
        line: InputLine,
        *,
        endpoint: str,
        batch_id: str,
        tenant: str = "",
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> PreparedLine:
        self.began.set()
        assert self.may_go_on.wait(20)
        self.was_wanted = is_wanted()
        self.ended.set()
        return super().prepare(line, endpoint=endpoint, batch_id=batch_id, tenant=tenant, is_wanted=is_wanted)


class LeapingClock:
    """The real one, ahead by what it was told to leap; `wait_for_looks` until it has been looked at so often."""

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
    bench.parts = WorkerParts(**{**_fields(bench.parts), "prompts": prompts})
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
    bench.parts = WorkerParts(**{**_fields(bench.parts), "monotonic": clock})
    bench.start(bench.claim())
    assert slow_prompts.began.wait(20)
    clock.leap(STALL_SECONDS + 1)
    clock.wait_for_looks(4)  # an extension that was under way has landed
    with bench.maker.begin() as session:
        session.execute(text("UPDATE chunk SET lease_until = now() + interval '5 seconds'"))
    clock.wait_for_looks(4)
    assert bench.rows("SELECT lease_until > now() + interval '10 seconds' FROM chunk") == [(False,)]
    slow_prompts.may_go_on.set()
    bench.join()


def line_with_a_grammar(line: MakeLine) -> dict[str, Any]:
    return line(0, guided_regex="a+")


@pytest.mark.parametrize("slow_line", [long_line, line_with_a_grammar])
def test_a_slow_line_of_a_cancelled_batch_is_not_waited_for(
    bench: Bench,
    slow_prompts: SlowPrompts,
    submit_valid: SubmitLines,
    line: MakeLine,
    tenant: Tenant,
    slow_line: Callable[[MakeLine], dict[str, Any]],
) -> None:
    batch_id = submit_valid([slow_line(line)])
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
    bench.parts.drain.begin(grace_seconds=0)
    bench.join()
    assert bench.rows("SELECT state FROM chunk") == [("ready",)]
    slow_prompts.may_go_on.set()
    assert slow_prompts.ended.wait(20)
    assert slow_prompts.was_wanted is False


def test_a_long_line_waits_for_room_beside_the_others_and_leaves_the_queue_when_cancelled(
    bench: Bench, slow_prompts: SlowPrompts, submit_valid: SubmitLines, line: MakeLine, tenant: Tenant
) -> None:
    with bench.parts.room.inside(ROOM_BYTES, is_wanted=lambda: True):
        batch_id = submit_valid([long_line(line)])
        bench.start(bench.claim())
        with bench.maker.begin() as session:
            lifecycle.cancel_batch(session, tenant.id, batch_id)
        bench.join()
        assert bench.rows("SELECT state FROM chunk") == [("withdrawn",)]
    assert not slow_prompts.began.is_set()


def test_a_break_of_the_database_connection_is_survived(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0), line(1)])
    bench.start(bench.claim())
    host.wait_for(2)
    with bench.maker.begin() as session:
        session.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
        )
    host.answer(2)
    bench.join()
    assert bench.rows(CHUNKS) == [("done", 1)]
    assert bench.rows(BILLED) == [(2, 4)]


def test_priority_deadline_and_tenant_reach_the_engine(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine, tenant: Tenant
) -> None:
    submit_valid([line(0)])
    claim = bench.claim()
    bench.start(claim)
    host.wait_for(1)
    request, _ = host.waiting[0]
    assert (request.priority, request.tenant) == (1, tenant.id)
    assert request.deadline == claim.expires_at.timestamp()
    host.answer(1)
    bench.join()


def test_each_prompt_of_a_line_is_sampled_with_its_own_seed(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines
) -> None:
    body = {"model": "demo", "prompt": ["Total"] * 3, "max_tokens": 4}
    asked = {"custom_id": "c", "method": "POST", "url": COMPLETION_ENDPOINT, "body": body}
    submit_valid([asked], endpoint=COMPLETION_ENDPOINT)
    bench.start(bench.claim())
    host.wait_for(3)
    assert len({request.params.seed for request, _ in host.waiting.values()}) == 3
    host.answer(3)
    bench.join()
    assert bench.rows(RESULTS) == [(0, 200)]


def test_an_object_store_that_is_away_is_no_loss(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    class Away(Storage):
        def read_range(self, key: str, start: int, end: int) -> bytes:
            raise ServiceError("the store is away")

    submit_valid([line(0)])
    claim = bench.claim()
    bench.parts = WorkerParts(**{**_fields(bench.parts), "storage": Away("memory://")})
    bench.start(claim)
    bench.join()
    assert bench.rows("SELECT state, losses FROM chunk") == [("ready", 0)]


class Gate(Storage):
    """Reads wait until `may_go_on` is set."""

    def __init__(self, behind: Storage) -> None:
        self._behind = behind
        self.began = threading.Event()
        self.may_go_on = threading.Event()

    def read_range(self, key: str, start: int, end: int) -> bytes:
        self.began.set()
        assert self.may_go_on.wait(60)
        return self._behind.read_range(key, start, end)


def test_the_lease_is_held_while_the_store_is_slow(
    bench: Bench, host: FakeHost, storage: Storage, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0)])
    host.instant = True
    gate = Gate(storage)
    bench.parts = WorkerParts(**{**_fields(bench.parts), "storage": gate})
    bench.start(bench.claim())
    assert gate.began.wait(20)
    bench.age_lease()
    bench.wait_until("SELECT lease_until > now() + interval '10 seconds' FROM chunk", [(True,)])
    gate.may_go_on.set()
    bench.join()
    assert bench.rows(CHUNKS) == [("done", 1)]


@pytest.mark.parametrize("mood", [Mood.HANG, Mood.REFUSE])
def test_a_store_that_hangs_or_refuses_gives_the_chunk_back(
    bench: Bench, host: FakeHost, s3: S3Server, storage: Storage, submit_valid: SubmitLines, line: MakeLine, mood: Mood
) -> None:
    submit_valid([line(0)])
    host.instant = True
    key = bench.rows("SELECT object_key FROM file")[0][0]
    away = Storage(s3.url, timeout_seconds=0.3)
    away.put(key, storage.read_range(key, 0, 10_000))
    bench.parts = WorkerParts(**{**_fields(bench.parts), "storage": away})
    s3.trouble(mood)
    for fence in (1, 2):
        bench.start(bench.claim())
        bench.join()
        assert bench.rows("SELECT state, fence, losses FROM chunk") == [("ready", fence, 0)]
    s3.recover()
    bench.start(bench.claim())
    bench.join()
    assert bench.rows(RESULTS) == [(0, 200)]


def test_a_chunk_is_marked_as_started_once_its_lines_go_to_the_engine(
    bench: Bench, host: FakeHost, storage: Storage, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0)])
    gate = Gate(storage)
    bench.parts = WorkerParts(**{**_fields(bench.parts), "storage": gate})
    bench.start(bench.claim())
    assert gate.began.wait(20)
    assert bench.rows("SELECT started_fence FROM chunk") == [(None,)]
    gate.may_go_on.set()
    host.wait_for(1)
    assert bench.rows("SELECT started_fence FROM chunk") == [(1,)]
    host.answer(1)
    bench.join()


def test_a_flush_that_waits_for_a_lock_is_repeated_and_the_lease_is_held_meanwhile(
    bench: Bench, host: FakeHost, database_url: str, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0), line(1)])
    impatient = connect(
        make_url(database_url).update_query_dict({"options": "-c lock_timeout=100ms"}).render_as_string(False)
    )
    bench.parts = WorkerParts(**{**_fields(bench.parts), "sessions": sessions(impatient)})
    bench.start(bench.claim())
    host.wait_for(2)
    with bench.maker.begin() as session:
        session.execute(text("SELECT FROM batch FOR UPDATE"))
        host.answer(2)
        for _ in range(3):
            bench.age_lease()
            bench.wait_until("SELECT lease_until > now() + interval '10 seconds' FROM chunk", [(True,)])
    bench.join()
    impatient.dispose()
    assert bench.rows(CHUNKS) == [("done", 1)]
    assert bench.rows(BILLED) == [(2, 4)]


def _fields(parts: WorkerParts) -> dict[str, Any]:
    return {name: getattr(parts, name) for name in WorkerParts.__dataclass_fields__}


def test_a_chunk_whose_input_is_lost_fails_its_batch_before_its_lease_ends(
    bench: Bench,
    storage: Storage,
    submit_valid: SubmitLines,
    line: MakeLine,
    read_batch: Callable[[str], Batch],
) -> None:
    batch_id = submit_valid([line(0)])
    storage.delete(bench.rows("SELECT object_key FROM file")[0][0])
    bench.start(bench.claim())
    bench.join()
    batch = read_batch(batch_id)
    assert (batch.state, batch.outcome) == ("finalizing", "failed")
    assert [error["code"] for error in batch.errors or []] == ["file_not_found"]
    assert bench.rows("SELECT state, losses FROM chunk") == [("withdrawn", 0)]
