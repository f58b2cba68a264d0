"""Spans of what happens to a batch, from the request that created it to the engine. Without a collector: nothing.

Knows no library: `opentelemetry_spans` does, which `collector` loads where one is set.
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
        """Return what its children are begun with, as W3C's `traceparent`; None where nothing is traced."""

    def set(self, **attributes: Value) -> None:
        """Say more of it."""

    def event(self, name: str, *, at: float) -> None:
        """Note what happened in it, in seconds since the epoch."""

    def end(self, *, at: float | None = None, error: str | None = None) -> None:
        """End it, now or at a time."""


class Spans(Protocol):
    """What begins spans."""

    def begin(self, name: str, *, parent: str | None, at: float | None, attributes: dict[str, Value]) -> Span: ...


class _NoSpan:
    context = None

    def set(self, **attributes: Value) -> None: ...

    def event(self, name: str, *, at: float) -> None: ...

    def end(self, *, at: float | None = None, error: str | None = None) -> None: ...


_NO_SPAN = _NoSpan()


class Traces:
    """Spans of one process. Every method may be called from any thread, and does nothing where nothing is traced."""

    def __init__(self, spans: Spans | None = None, *, share_of_lines: float = 0.0) -> None:
        self._spans = spans
        self._share_of_lines = share_of_lines

    @property
    def is_on(self) -> bool:
        return self._spans is not None

    def begin_root(self, name: str, *, parent: str | None, **attributes: Value) -> Span:
        """Begin what may have no parent: a request. A caller's own trace goes on."""
        if self._spans is None:
            return _NO_SPAN
        return self._spans.begin(name, parent=parent, at=None, attributes=attributes)

    @contextmanager
    def root(self, name: str, **attributes: Value) -> Iterator[Span]:
        """Span a block that begins a trace of its own."""
        with _ended(self.begin_root(name, parent=None, **attributes)) as span:
            yield span

    @contextmanager
    def span(self, name: str, *, parent: str | None, **attributes: Value) -> Iterator[Span]:
        """Span a block; nothing without a parent: its batch is not traced."""
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
        """Note what is over by now, and what happened in it; times are seconds since the epoch."""
        if self._spans is None or parent is None:
            return
        span = self._spans.begin(name, parent=parent, at=began_at, attributes=attributes)
        for event, at in events:
            span.event(event, at=at)
        span.end()

    def has_line(self, batch_id: str, line_no: int) -> bool:
        """Tell whether a line is among those that have a span of their own: the same ones in every worker."""
        if self._spans is None or not self._share_of_lines:
            return False
        return zlib.crc32(f"{batch_id} {line_no}".encode()) < self._share_of_lines * 2**32


@contextmanager
def _ended(span: Span) -> Iterator[Span]:
    try:
        yield span
    except BaseException as error:
        span.end(error=type(error).__name__)  # its words may hold what a tenant wrote
        raise
    span.end()


NO_TRACES = Traces()
