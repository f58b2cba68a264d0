"""Shows the progress of a batch: a live bar in a terminal, a plain line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from cli.watching.progress import ENDED, BatchProgress, Rate, Waiting, figures, shown_count

_LINE_EVERY_SECONDS = 10.0


class Display(Protocol):
    def show(self, progress: BatchProgress) -> None: ...


@contextmanager
def progress_display(
    stream: TextIO | None = None,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    waiting: Waiting | None = None,
) -> Iterator[Display]:
    """Open the display for `stream` (standard error by default)."""
    stream, waiting = stream or sys.stderr, waiting or Waiting()
    if not stream.isatty():
        yield PlainDisplay(stream, monotonic=monotonic, waiting=waiting)
        return
    from cli.watching.live_display import live_display  # loads rich, which a pipe does not need

    with live_display(stream, monotonic=monotonic, waiting=waiting) as display:
        yield display


class PlainDisplay:
    """Writes a line when the status changes and every ten seconds; the caller reports the end."""

    def __init__(self, stream: TextIO, *, monotonic: Callable[[], float], waiting: Waiting | None = None) -> None:
        self._stream = stream
        self._monotonic = monotonic
        self._rate = Rate()
        self._last_status: str | None = None
        self._last_line_at = 0.0
        self._waiting = waiting or Waiting()

    def show(self, progress: BatchProgress) -> None:
        now = self._monotonic()
        self._rate.add(now, progress)
        if progress.status in ENDED:
            return
        if (sentence := self._waiting.news(progress)) is not None:
            print(sentence, file=self._stream, flush=True)
        if progress.status == self._last_status and now - self._last_line_at < _LINE_EVERY_SECONDS:
            return
        self._last_status, self._last_line_at = progress.status, now
        parts = [progress.status.replace("_", " ")]
        if progress.total:
            parts += [shown_count(progress), *figures(self._rate, progress)]
        print("  ".join(parts), file=self._stream, flush=True)
