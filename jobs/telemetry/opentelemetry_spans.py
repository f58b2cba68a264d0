"""Spans by OpenTelemetry, sent over OTLP/HTTP from its own thread. The only file that needs the extra `otel`.

An unreachable collector costs its spans and a warning, nothing else.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span as OpenTelemetrySpan
from opentelemetry.trace import Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from jobs.telemetry.traces import Value

_NANOSECONDS = 1_000_000_000
_EXPORT_SECONDS = 2.0
"""Time limit for sending some hundred spans, retries included; an unreachable collector delays an exit by this."""
_PROPAGATOR = TraceContextTextMapPropagator()


class TracedSpan:
    """A span of the library."""

    def __init__(self, span: OpenTelemetrySpan) -> None:
        self._span = span

    @property
    def context(self) -> str | None:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, context=set_span_in_context(self._span))
        return carrier.get("traceparent")

    def set(self, **attributes: Value) -> None:
        self._span.set_attributes(attributes)

    def event(self, name: str, *, at: float) -> None:
        self._span.add_event(name, timestamp=_nanoseconds(at))

    def end(self, *, at: float | None = None, error: str | None = None) -> None:
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end(end_time=_nanoseconds(at))


class TracedSpans:
    """Begins spans of one processor."""

    def __init__(self, processor: SpanProcessor, *, role: str) -> None:
        resource = Resource.create({"service.name": f"tokenmill-{role}"})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("tokenmill")

    def begin(self, name: str, *, parent: str | None, at: float | None, attributes: dict[str, Value]) -> TracedSpan:
        context = _PROPAGATOR.extract({} if parent is None else {"traceparent": parent})
        span = self._tracer.start_span(name, context=context, attributes=attributes, start_time=_nanoseconds(at))
        return TracedSpan(span)

    def end(self) -> None:
        """Send the remaining spans and stop."""
        self._provider.shutdown()


class EndingExporter:
    """A `SpanExporter` that, once the process ends, stops sending after the first failure of the collector."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.is_ending = threading.Event()
        self._has_failed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._has_failed and self.is_ending.is_set():
            return SpanExportResult.FAILURE
        result = self._exporter.export(spans)
        self._has_failed = result is not SpanExportResult.SUCCESS
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def exporting(url: str, *, role: str) -> TracedSpans:
    """Return spans that are exported to a collector; the rest is sent when the process ends."""
    exporter = EndingExporter(OTLPSpanExporter(endpoint=url, timeout=_EXPORT_SECONDS))
    spans = TracedSpans(BatchSpanProcessor(exporter), role=role)

    def end() -> None:
        exporter.is_ending.set()
        spans.end()

    atexit.register(end)
    return spans


def _nanoseconds(at: float | None) -> int | None:
    return None if at is None else int(at * _NANOSECONDS)
