"""Tests of running a chunk with another answerer: an engine elsewhere, called over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import text

from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.recording import LineResult
from jobs.errors import ServiceError
from jobs.lines.output_lines import output_line
from jobs.lines.reading import RawLine, parse_line
from jobs.telemetry.opentelemetry_spans import TracedSpans
from jobs.telemetry.traces import Traces
from tests.workers.chunks.builders import BILLED, CHUNKS, RESULTS, Bench, MakeLine, SubmitLines
from workers.chunks import ends, results
from workers.chunks.answerer import ChunkLines, Ended, Output, Room, Unanswered
from workers.chunks.line_results import FailureMaker
from workers.chunks.run import ChunkRun
from workers.drain import Drain

STATES = "SELECT state, losses FROM chunk ORDER BY id"


class Handler(BaseHTTPRequestHandler):
    """Answers each request with two tokens, or with 503 if a message says so."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_away = asked["messages"][0]["content"] == "away"
        self.send_response(503 if is_away else 200)
        self.end_headers()
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        self.wfile.write(json.dumps({"id": "chatcmpl-1", "choices": [], "usage": usage}).encode())

    def log_message(self, *_: Any) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLine:
    line_no: int
    custom_id: str
    body: Mapping[str, Any]
    most_tokens: int
    num_prompt_tokens: int = 3


class RemoteLines(ChunkLines[RemoteLine]):
    """The lines of one chunk: two requests at a time, and a limited number per turn."""

    group_lines = 1

    def __init__(
        self, claim: ClaimedChunk, url: str, *, lines_a_turn: int = 99, most_tokens: Mapping[int, int] | None = None
    ) -> None:
        """`most_tokens` by line number; 5 for other lines."""
        super().__init__(claim, FailureMaker(claim.batch_id))
        self._most_tokens = most_tokens or {}
        self._url = url
        self._num_left = lines_a_turn
        self._threads = ThreadPoolExecutor(2)
        self._open: set[int] = set()

    def prepare(self, raw: RawLine, *, is_wanted: Callable[[], bool], room: Room) -> RemoteLine:
        assert raw.content is not None
        line = parse_line(raw.content, line_no=raw.line_no, endpoint=self.claim.endpoint)
        most_tokens = self._most_tokens.get(line.line_no, 5)
        return RemoteLine(line_no=line.line_no, custom_id=line.custom_id, body=line.body, most_tokens=most_tokens)

    def submit(
        self, lines: Sequence[tuple[RemoteLine, Output | None]], on_end: Callable[[Ended[RemoteLine]], None]
    ) -> Mapping[int, Exception]:
        for line, _ in lines:
            self._open.add(line.line_no)
            self._num_left -= 1
            if self._num_left < 0:
                on_end(Ended.by(line, Unanswered.LEFT))
            else:
                self._threads.submit(self._post, line, on_end)
        return {}

    def _post(self, line: RemoteLine, on_end: Callable[[Ended[RemoteLine]], None]) -> None:
        if line.line_no not in self._open:
            return
        outcome: LineResult | ServiceError
        try:
            outcome = self._result(line, httpx.post(self._url, json=line.body).raise_for_status().json())
        except httpx.HTTPError as error:
            outcome = ServiceError(str(error))
        on_end(Ended.by(line, outcome))

    def _result(self, line: RemoteLine, body: Mapping[str, Any]) -> LineResult:
        content = output_line(self.claim.batch_id, line.line_no, line.custom_id, status_code=200, body=body)
        usage = body["usage"]
        return LineResult(
            line_no=line.line_no,
            status_code=200,
            line=content,
            input_tokens=usage["prompt_tokens"],
            output_tokens=usage["completion_tokens"],
        )

    def drop(self, line_no: int) -> None:
        self._open.discard(line_no)

    def drop_all(self) -> Mapping[int, Output]:
        self._open.clear()
        self._threads.shutdown(wait=False)
        return {}


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1/chat/completions"
    server.shutdown()
    server.server_close()


def run(bench: Bench, url: str, **options: Any) -> bool:
    return ChunkRun(RemoteLines(bench.claim(), url, **options), bench.services).run()


def test_every_line_is_answered_elsewhere_covered_before_and_billed_once(
    bench: Bench, url: str, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(number) for number in range(4)])
    assert run(bench, url)
    assert bench.rows(CHUNKS) == [("done", 1)]
    assert bench.rows(RESULTS) == [(number, 200) for number in range(4)]
    assert bench.rows(BILLED) == [(4, 8)]
    assert bench.rows("SELECT spent_tokens::int FROM budget") == [(4 * 5,)]
    assert bench.rows("SELECT covered_tokens FROM batch UNION SELECT covered_tokens FROM chunk") == [(0,)]


def test_a_line_waits_for_room_in_a_budget_whatever_answers_it(
    bench: Bench, url: str, submit_valid: SubmitLines, line: MakeLine
) -> None:
    with bench.maker.begin() as session:
        session.execute(text("UPDATE budget SET limit_tokens = 100"))
    submit_valid([line(number) for number in range(4)])
    assert not run(bench, url, most_tokens={1: 101, 3: 101})
    assert bench.rows(STATES) == [("waiting", 0)]
    assert bench.rows(BILLED) == [(2, 4)]


def test_an_engine_that_is_away_costs_no_line_its_result_and_what_was_answered_is_kept(
    bench: Bench, url: str, submit_valid: SubmitLines, line: MakeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "RETRY_SECONDS", 0.0)
    submit_valid([line(0), line(1, messages=[{"role": "user", "content": "away"}])])
    for num_claims in (1, 2):
        assert not run(bench, url)
        assert bench.rows("SELECT state, fence, losses FROM chunk") == [("ready", num_claims, 0)]
    bench.wait_until(RESULTS, [(0, 200)])
    assert bench.rows(BILLED) == [(1, 2)]


def test_a_worker_that_stops_gives_the_lines_of_another_engine_back(
    bench: Bench, url: str, submit_valid: SubmitLines, line: MakeLine
) -> None:
    drain = Drain()
    drain.begin(0)
    bench.change_parts(drain=drain)
    submit_valid([line(0)])
    assert not run(bench, url)
    assert bench.rows(STATES) == [("ready", 0)]


def test_lines_that_are_left_for_another_turn_come_back_with_an_estimate_of_them(
    bench: Bench, url: str, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(number) for number in range(4)])
    ((estimate,),) = bench.rows("SELECT estimated_tokens FROM chunk")
    assert run(bench, url, lines_a_turn=3)
    assert bench.rows("SELECT state, losses, estimated_tokens FROM chunk") == [("ready", 0, estimate // 4)]
    assert run(bench, url)
    assert bench.rows(CHUNKS) == [("done", 2)]
    assert bench.rows(BILLED) == [(4, 8)]


def test_an_answer_that_is_too_large_to_store_fails_its_line_whatever_made_it(
    bench: Bench, url: str, submit_valid: SubmitLines, line: MakeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "MAX_RESULT_BYTES", 20)
    submit_valid([line(0)])
    assert run(bench, url)
    assert bench.rows(RESULTS) == [(0, None)]
    assert bench.rows(BILLED) == [(0, 0)]


def test_a_line_has_its_span_whatever_answers_it(
    bench: Bench, url: str, submit_valid: SubmitLines, line: MakeLine
) -> None:
    exporter = InMemorySpanExporter()
    spans = TracedSpans(SimpleSpanProcessor(exporter), role="test")
    bench.change_parts(traces=Traces(spans, share_of_lines=1.0))
    submit_valid([line(0), line(1)])
    with bench.maker.begin() as session:
        session.execute(text(f"UPDATE batch SET trace_context = '00-{'1' * 32}-{'2' * 16}-01'"))
    assert run(bench, url)
    lines = [span for span in exporter.get_finished_spans() if span.name == "line"]
    assert sorted((span.attributes or {})["line_no"] for span in lines) == [0, 1]
