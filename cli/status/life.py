"""The status line of a running stack: live in a terminal, a plain line per minute in a log.

A thread reads the overview, so that a read that hangs or fails blocks nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from cli.watching.progress import clock
from jobs.counted import counted
from jobs.errors import TokenmillError

if TYPE_CHECKING:
    from jobs.metrics import Overview

LOOK_SECONDS = 2.0  # as often as workers report
_LOG_LOOK_SECONDS = 10.0  # for a line a minute
_HALF_LIFE_SECONDS = 5.0

Look = Callable[[], "Overview"]


class Throughput:
    """Output tokens per second of all workers, from the totals since their engines started."""

    def __init__(self) -> None:
        self._totals: dict[str, int] = {}
        self._seen_at: float | None = None
        self._seconds = 0.0
        self._tokens = 0.0

    def add(self, now: float, totals: dict[str, int]) -> None:
        """Add one sample; a restarted engine counts from zero."""
        if self._seen_at is not None:
            kept = 0.5 ** ((now - self._seen_at) / _HALF_LIFE_SECONDS)
            grown = sum(max(0, total - self._totals.get(worker, total)) for worker, total in totals.items())
            self._seconds = self._seconds * kept + now - self._seen_at
            self._tokens = self._tokens * kept + grown
        self._totals, self._seen_at = totals, now

    @property
    def tokens_per_second(self) -> float:
        return self._tokens / self._seconds if self._seconds else 0.0


class Life:
    """The latest overview, as one line."""

    def __init__(self, look: Look, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._look = look
        self._monotonic = monotonic
        self._started_at = monotonic()
        self._throughput = Throughput()
        self._overview: Overview | None = None

    def look(self) -> None:
        """Read the overview once; it is unknown if the database is away."""
        try:
            self._overview = self._look()
        except TokenmillError:  # Postgres is away: the supervisor reports it
            self._overview = None
            return
        totals = {worker.worker_id: worker.output_tokens for worker in self._overview.workers}
        self._throughput.add(self._monotonic(), totals)

    def line(self) -> str:
        """Return such as `2 batches, 412/1,000 lines, 1,240 output tok/s, 1 worker with 16 requests, up 0:12:03`."""
        up = f"up {clock(self._monotonic() - self._started_at)}"
        latest = self._overview
        if latest is None:
            return f"Postgres does not answer, {up}"
        num_running = sum(worker.num_running for worker in latest.workers)
        parts = [counted(latest.num_batches, "batch", "batches") if latest.num_batches else "no batch is open"]
        if latest.num_lines:
            parts.append(f"{latest.num_done:,}/{counted(latest.num_lines, 'line')}")
        if (speed := self._throughput.tokens_per_second) >= 0.5:
            parts.append(f"{speed:,.0f} output tok/s")
        workers = counted(len(latest.workers), "worker") if latest.workers else "no worker runs"
        parts.append(f"{workers} with {counted(num_running, 'request')}" if num_running else workers)
        return ", ".join([*parts, up])


@contextmanager
def shown_life(
    look: Look, *, stream: TextIO | None = None, every: float | None = None, looks_a_line: int = 6
) -> Iterator[None]:
    """Show the status line on `stream` (standard error by default) until the block ends."""
    stream, life = stream or sys.stderr, Life(look)
    if stream.isatty():
        show = _in_terminal(life, stream, LOOK_SECONDS if every is None else every)
    else:
        show = _in_log(life, stream, _LOG_LOOK_SECONDS if every is None else every, looks_a_line)
    with show:
        yield


@contextmanager
def _in_terminal(life: Life, stream: TextIO, every: float) -> Iterator[None]:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def rendered() -> Text:
        return Text(life.line(), style="cyan", no_wrap=True, overflow="ellipsis")

    with (
        _looking(life.look, every),
        # Other output on stderr appears above the line; standard output is not redirected.
        Live(get_renderable=rendered, console=Console(file=stream), transient=True, redirect_stdout=False),
    ):
        yield


@contextmanager
def _in_log(life: Life, stream: TextIO, every: float, looks_a_line: int) -> Iterator[None]:
    num_looks = 0

    def look() -> None:
        nonlocal num_looks
        life.look()
        num_looks += 1
        if num_looks % looks_a_line == 0:
            print(f"tokenmill: {life.line()}", file=stream, flush=True)

    with _looking(look, every):
        yield


@contextmanager
def _looking(look: Callable[[], None], every: float) -> Iterator[None]:
    end = threading.Event()

    def run() -> None:
        while not end.is_set():
            look()
            end.wait(every)

    thread = threading.Thread(target=run, name="life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(1.0)  # a thread that hangs in a read dies with the process
