"""Tests of a batch's trace from its request to the engine: a real Postgres, the API's app, a chunk, spans in memory."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import text

from api.app import create_app
from engine.outputs import FinishReason, SequenceTimes, TokenDelta
from features.pipelines import lifecycle as runs
from jobs.accounts import keys
from jobs.batches import lifecycle as batches
from jobs.batches import sweeps
from jobs.batches.sweeps import DueBatch
from jobs.chunks import fleet
from jobs.errors import InputError
from jobs.states import BatchState, Priority
from jobs.storage import Storage, store_marker
from jobs.tables import Tenant
from jobs.telemetry.collector import start_traces
from jobs.telemetry.declared import WORKER
from jobs.telemetry.meters import Meters
from jobs.telemetry.opentelemetry_spans import EndingExporter, TracedSpans
from jobs.telemetry.traces import NO_TRACES, Traces
from tests.all_settings import Settings
from tests.features.pipelines.work.run_builders import House
from tests.workers.chunks.builders import Bench, FakeHost, MakeLine, SubmitLines
from workers.chunks.claimer import Claimer
from workers.control import Control
from workers.dispatcher import Dispatcher
from workers.drain import Drain

ROOT = Path(__file__).resolve().parents[3]
CALLERS_TRACE, CALLERS_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TIMES = SequenceTimes(arrived_at=1000.0, started_at=1001.5, first_token_at=1002.0, ended_at=1003.25)
PROMPT = "a prompt that no span may hold"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traces(exporter: InMemorySpanExporter) -> Traces:
    return Traces(TracedSpans(SimpleSpanProcessor(exporter), role="test"), share_of_lines=1.0)


class AskedDrain(Drain):
    """Sets `is_asked` when it is polled."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = threading.Event()

    @property
    def is_on(self) -> bool:
        self.is_asked.set()
        return super().is_on


class HintsAtOnce:
    """Hints for a worker that starts."""

    def __init__(self, claimer: Claimer, drain: AskedDrain) -> None:
        self._claimer, self._drain = claimer, drain

    def validate(self, _batch_id: str) -> bool:
        return False

    def finalise(self, _batch_id: str) -> bool:
        return False

    def run_chunk(self, chunk_id: int, *, model: str) -> bool:
        following = threading.Thread(target=self._claimer.follow_hint, args=(chunk_id,))
        following.start()
        assert self._drain.is_asked.wait(20), "the hint is not there yet"
        self._claimer.start()
        following.join(20)
        return True


class Site:
    """One deployment in this process: an API, a control worker and a bench with the same objects and spans."""

    def __init__(self, settings: Settings, traces: Traces, bench: Bench, host: FakeHost, key: str) -> None:
        self._settings, self._traces, self._bench, self._host, self._key = settings, traces, bench, host, key
        self._storage = Storage.of(settings)
        store_marker.bind(bench.maker, self._storage)
        bench.change_parts(storage=self._storage, traces=traces)
        self._control = Control(bench.maker, self._storage, settings, traces=traces)

    def create(self, **headers: str) -> str:
        """Create a batch of two lines over HTTP; return its id."""
        requests = [{"body": {"model": "demo", "prompt": f"{PROMPT} {number}", "max_tokens": 2}} for number in range(2)]
        body = {"endpoint": "/v1/completions", "completion_window": "24h", "requests": requests}
        return self._post("/v1/batches", body, headers)

    def retry(self, batch_id: str) -> str:
        """Retry a batch over HTTP; return the id of the new one."""
        return self._post(f"/v1/batches/{batch_id}/retry", {}, {})

    def _post(self, path: str, body: Mapping[str, object], headers: Mapping[str, str]) -> str:
        async def post() -> httpx.Response:
            app = create_app(self._settings, traces=self._traces)
            async with app.router.lifespan_context(app):
                transport = httpx.ASGITransport(app)
                async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                    sign_in = {"Authorization": f"Bearer {self._key}"}
                    return await client.post(path, json=body, headers={**sign_in, **headers})

        answer = asyncio.run(post())
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    def validate(self, batch_id: str) -> None:
        self._do(batch_id, BatchState.VALIDATING)

    def cancel(self, batch_id: str, tenant: Tenant) -> None:
        """End a batch of which nothing has run."""
        with self._bench.maker.begin() as session:
            batches.cancel_batch(session, tenant.id, batch_id)
            sweeps.finish_ready(session)
        self._do(batch_id, BatchState.FINALIZING)

    def _do(self, batch_id: str, state: BatchState) -> None:
        due = DueBatch(batch_id=batch_id, tenant_id="any", priority=Priority.NORMAL, state=state, waited=timedelta(0))
        assert self._control.do(due)

    def run_chunk(self) -> None:
        """Run the chunk; the engine reports its times."""
        self._bench.start(self._bench.claim())
        self._answer()
        self._bench.join()

    def run_hinted(self, traces: Traces) -> None:
        """Let a dispatcher send a hint, and a worker run the chunk that it names."""
        bench, settings, drain = self._bench, self._settings, AskedDrain()
        claimer = Claimer(
            worker_id="w",
            model="demo",
            run=bench.run,
            sessions=bench.maker,
            settings=settings,
            drain=drain,
            meters=Meters(WORKER),
        )
        with bench.maker.begin() as session:
            fleet.register(session, worker_id="w", model="demo", max_chunks=1, max_model_len=64)
        hints = HintsAtOnce(claimer, drain)
        Dispatcher(bench.maker, self._storage, hints=hints, settings=settings, traces=traces).tick()
        self._answer()
        drain.begin(60)
        claimer.join()

    def _answer(self) -> None:
        self._host.wait_for(2)
        for request_id, (_, owner) in list(self._host.waiting.items()):
            del self._host.waiting[request_id]
            owner.receive(
                TokenDelta(request_id=request_id, token_ids=[40, 41], finish_reason=FinishReason.LENGTH, times=TIMES)
            )


@pytest.fixture
def make_site(
    tmp_path: Path, database_url: str, bench: Bench, host: FakeHost, tenant: Tenant
) -> Callable[[Traces], Site]:
    def make(traces: Traces) -> Site:
        with bench.maker.begin() as session:
            _, key = keys.create_key(session, tenant.id)
        settings = Settings(database_url=database_url, storage_url=tmp_path.as_uri(), redis_url="redis://127.0.0.1:1")
        return Site(settings, traces, bench, host, key)

    return make


def parents(spans: list[ReadableSpan]) -> dict[str, str | None]:
    """Return the name of each span's parent, by the span's name."""
    names = {span.context.span_id: span.name for span in spans if span.context is not None}
    return {span.name: None if span.parent is None else names.get(span.parent.span_id) for span in spans}


def test_a_batch_is_one_trace_from_its_request_to_its_lines(
    make_site: Callable[[Traces], Site], traces: Traces, exporter: InMemorySpanExporter, bench: Bench
) -> None:
    site = make_site(traces)
    batch_id = site.create()
    site.validate(batch_id)
    site.run_chunk()
    spans = list(exporter.get_finished_spans())
    assert len({span.context.trace_id for span in spans if span.context is not None}) == 1
    assert parents(spans) == {
        "POST /v1/batches": None,
        "validate": "POST /v1/batches",
        "chunk": "POST /v1/batches",
        "flush": "chunk",
        "line": "chunk",
    }
    (chunk,) = [span for span in spans if span.name == "chunk"]
    ((chunk_id, used),) = bench.rows(
        "SELECT chunk.id, sum(ledger.input_tokens + ledger.output_tokens)::int"
        " FROM chunk JOIN ledger ON ledger.chunk_id = chunk.id GROUP BY 1"
    )
    assert dict(chunk.attributes or {}) == {
        "batch_id": batch_id,
        "chunk_id": chunk_id,
        "worker_id": "w",
        "claimed_by": "turn",
        "tokens": used,
        "is_done": True,
    }
    lines = [span for span in spans if span.name == "line"]
    assert sorted(str((span.attributes or {})["line_no"]) for span in lines) == ["0", "1"]
    assert [(event.name, event.timestamp) for event in lines[0].events] == [
        ("arrived_at", 1_000_000_000_000),
        ("started_at", 1_001_500_000_000),
        ("first_token_at", 1_002_000_000_000),
        ("ended_at", 1_003_250_000_000),
    ]
    assert PROMPT not in "".join(span.to_json() for span in spans)


def test_a_hint_has_a_span_and_its_chunk_says_how_long_it_waited(
    make_site: Callable[[Traces], Site], traces: Traces, exporter: InMemorySpanExporter, bench: Bench
) -> None:
    site = make_site(traces)
    site.validate(site.create())
    site.run_hinted(traces)
    spans = list(exporter.get_finished_spans())
    found = {span.name: dict(span.attributes or {}) for span in spans}
    assert parents(spans)["hint"] == "POST /v1/batches"
    assert found["hint"] == {"chunk_id": found["chunk"]["chunk_id"], "is_sent": True}
    assert found["chunk"]["claimed_by"] == "hint"
    waited = found["chunk"]["hint_waited_seconds"]
    assert isinstance(waited, float)
    assert 0 < waited < Settings().hint_again_seconds
    assert bench.rows("SELECT state FROM chunk") == [("done",)]


def test_a_retry_begins_a_trace_of_its_own(
    make_site: Callable[[Traces], Site], traces: Traces, exporter: InMemorySpanExporter, bench: Bench, tenant: Tenant
) -> None:
    site = make_site(traces)
    first = site.create()
    site.validate(first)
    site.cancel(first, tenant)
    again = site.retry(first)
    (span,) = [each for each in exporter.get_finished_spans() if each.name.endswith("/retry")]
    assert span.name == "POST /v1/batches/{batch_id}/retry"
    contexts = dict(bench.rows("SELECT id, trace_context FROM batch"))
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" in contexts[again]
    assert f"{span.context.trace_id:032x}" not in contexts[first]


def test_the_batch_of_a_pipelines_step_begins_a_trace(
    house: House, traces: Traces, exporter: InMemorySpanExporter
) -> None:
    house.put("in/a.jsonl", {"text": "one"})
    run_id = house.trigger(house.make())
    with house.maker.begin() as session:
        runs.start_queued(session)
    house.runs(traces=traces).advance(run_id)
    (span,) = exporter.get_finished_spans()
    assert span.context is not None
    assert (span.name, dict(span.attributes or {})) == ("step", {"run_id": run_id, "step": "fields"})
    with house.maker() as session:
        (context,) = session.scalars(text("SELECT trace_context FROM batch"))
    assert f"{span.context.trace_id:032x}-{span.context.span_id:016x}" in context


def test_the_trace_of_a_caller_goes_on(
    make_site: Callable[[Traces], Site], traces: Traces, exporter: InMemorySpanExporter
) -> None:
    make_site(traces).create(traceparent=f"00-{CALLERS_TRACE}-{CALLERS_SPAN}-01")
    (span,) = exporter.get_finished_spans()
    assert span.context is not None
    assert span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (CALLERS_TRACE, CALLERS_SPAN)
    assert (span.attributes or {})["http.response.status_code"] == 200


def test_a_batch_of_an_api_that_traces_nothing_has_no_spans_anywhere(
    make_site: Callable[[Traces], Site], traces: Traces, exporter: InMemorySpanExporter, bench: Bench, host: FakeHost
) -> None:
    site = make_site(NO_TRACES)
    batch_id = site.create(traceparent=f"00-{CALLERS_TRACE}-{CALLERS_SPAN}-01")
    site.validate(batch_id)
    bench.change_parts(traces=traces)
    site.run_hinted(traces)
    assert exporter.get_finished_spans() == ()
    assert bench.rows("SELECT trace_context FROM batch") == [(None,)]


def test_a_chunk_that_is_lost_says_so(
    bench: Bench,
    host: FakeHost,
    traces: Traces,
    exporter: InMemorySpanExporter,
    submit_valid: SubmitLines,
    line: MakeLine,
) -> None:
    submit_valid([line(0)])
    with bench.maker.begin() as session:
        session.execute(text(f"UPDATE batch SET trace_context = '00-{CALLERS_TRACE}-{CALLERS_SPAN}-01'"))
    settings = Settings(heartbeat_seconds=100, lease_seconds=600)  # so that a flush notices it, and no heartbeat
    bench.change_parts(traces=traces, settings=settings)
    bench.start(bench.claim())
    host.wait_for(1)
    with bench.maker.begin() as session:
        session.execute(text("UPDATE chunk SET fence = fence + 1"))
    host.answer(1)
    bench.join()
    found = {span.name: span for span in exporter.get_finished_spans()}
    assert (found["chunk"].attributes or {})["is_done"] is False
    assert found["flush"].status.description == "Abandoned"


@pytest.mark.parametrize(("share", "lowest", "highest"), [(0.0, 0, 0), (0.1, 50, 150), (1.0, 1000, 1000)])
def test_a_share_of_the_lines_is_shown_and_the_same_everywhere(share: float, lowest: int, highest: int) -> None:
    spans = TracedSpans(SimpleSpanProcessor(InMemorySpanExporter()), role="test")
    chosen = [Traces(spans, share_of_lines=share).has_line("batch_1", number) for number in range(1000)]
    again = [Traces(spans, share_of_lines=share).has_line("batch_1", number) for number in range(1000)]
    assert chosen == again
    assert lowest <= sum(chosen) <= highest


class AwayExporter:
    """Fails, the first time just when the process is to end."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.is_ending = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.num_asked += 1
        self.is_ending.wait(10)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None: ...


def test_a_collector_that_is_away_is_not_asked_for_each_rest_of_the_spans_when_a_role_ends() -> None:
    away = AwayExporter()
    exporter = EndingExporter(away)
    away.is_ending = exporter.is_ending
    spans = TracedSpans(BatchSpanProcessor(exporter, max_export_batch_size=1), role="test")
    for number in range(5):
        spans.begin(f"span {number}", parent=None, at=None, attributes={}).end()
    exporter.is_ending.set()
    spans.end()
    assert away.num_asked == 1


def test_no_library_is_loaded_where_no_collector_is_set() -> None:
    code = (
        "import sys; from jobs.telemetry.collector import start_traces;"
        "import api.app, workers.control, workers.gpu_main;"
        "assert not start_traces('', role='api', share_of_lines=1).is_on;"
        "found = {'jobs.telemetry.opentelemetry_spans', 'opentelemetry.exporter'} & set(sys.modules); print(found)"
    )  # FastAPI itself loads what it finds of the library
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert ran.stdout.strip() == "set()"


def test_a_collector_without_the_extra_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "jobs.telemetry.opentelemetry_spans")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(InputError, match=r"TOKENMILL_TRACES_URL is set.*tokenmill\[otel\]"):
        start_traces("http://127.0.0.1:1/v1/traces", role="api", share_of_lines=0.0)
