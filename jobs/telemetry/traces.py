"""Spans of a batch's work, from the request that created it to the engine. Without a collector they do nothing.

Independent of the library: `opentelemetry_spans` uses it, loaded by `collector` where one is set.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

Value = str | int | float | bool


class Span(Protocol):
    """One span under way."""

    @property
    def context(self) -> str | None:
        """Return the parent for children, as W3C's `traceparent`; None where nothing is traced."""

    def set(self, **attributes: Value) -> None:
        """Set attributes."""

    def event(self, name: str, *, at: float) -> None:
        """Record an event, in seconds since the epoch."""

    def end(self, *, at: float | None = None, error: str | None = None) -> None:
        """End the span, now or at a given time."""


class Spans(Protocol):
    """Creates spans."""

    def begin(self, name: str, *, parent: str | None, at: float | None, attributes: dict[str, Value]) -> Span: ...


class _NoSpan:
    context = None

    def set(self, **attributes: Value) -> None: ...

    def event(self, name: str, *, at: float) -> None: ...

    def end(self, *, at: float | None = None, error: str | None = None) -> None: ...


_NO_SPAN = _NoSpan()


class Traces:
    """Spans of one process. Thread-safe; every method does nothing where tracing is off."""

    def __init__(self, spans: Spans | None = None, *, share_of_lines: float = 0.0) -> None:
        self._spans = spans
        self._share_of_lines = share_of_lines

    @property
    def is_on(self) -> bool:
        return self._spans is not None

    def begin_root(self, name: str, *, parent: str | None, **attributes: Value) -> Span:
        """Begin a span that may have no parent: a request. Continues the caller's own trace."""
        if self._spans is None:
            return _NO_SPAN
        return self._spans.begin(name, parent=parent, at=None, attributes=attributes)

    @contextmanager
    def root(self, name: str, **attributes: Value) -> Iterator[Span]:
        """Span a block that begins its own trace."""
        with _ended(self.begin_root(name, parent=None, **attributes)) as span:
            yield span

    @contextmanager
    def span(self, name: str, *, parent: str | None, **attributes: Value) -> Iterator[Span]:
        """Span a block; none without a parent, as its batch is not traced."""
        if self._spans is None or parent is None:
            yield _NO_SPAN
            return
        with _ended(self._spans.begin(name, parent=parent, at=None, attributes=attributes)) as span:
            yield span

    def note(
        self,
        name: str,
        *,
        parent: str | None,
        began_at: float,
        events: Sequence[tuple[str, float]],
        **attributes: Value,
    ) -> None:
        """Record a finished span and its events; times are seconds since the epoch."""
        if self._spans is None or parent is None:
            return
        span = self._spans.begin(name, parent=parent, at=began_at, attributes=attributes)
        for event, at in events:
            span.event(event, at=at)
        span.end()

    def has_line(self, batch_id: str, line_no: int) -> bool:
        """Return whether a line is sampled for a span of its own: the same lines in every worker."""
        if self._spans is None or not self._share_of_lines:
            return False
        return zlib.crc32(f"{batch_id} {line_no}".encode()) < self._share_of_lines * 2**32


@contextmanager
def _ended(span: Span) -> Iterator[Span]:
    try:
        yield span
    except BaseException as error:
        span.end(error=type(error).__name__)  # its message may quote a tenant's text
        raise
    span.end()


NO_TRACES = Traces()
