"""Shows how a batch goes on: a live bar in a terminal, a plain line now and then in a pipe or a log."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

_RATE_WINDOW_SECONDS = 10.0
_LINE_EVERY_SECONDS = 10.0
_SHORTEST_AVERAGE_SECONDS = 5  # servers tell whole seconds, so over a shorter time the rate would be a guess

ENDED = frozenset({"completed", "failed", "expired", "cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """One look at a batch. Tokens are those of finished lines."""

    status: str
    done: int
    failed: int
    total: int
    """0 until its file is validated."""
    output_tokens: int
    average: float | None = None
    """Output tokens per second from the batch's creation to its end; None before and for a short one."""
    waits_for: str | None = None
    """A sentence; other servers have none."""

    @classmethod
    def of(cls, batch: Any) -> BatchProgress:
        """Read an openai Batch; servers leave out counts they do not know yet."""
        counts, usage = batch.request_counts, getattr(batch, "usage", None)
        output_tokens = usage.output_tokens if usage else 0
        seconds = _elapsed_seconds(batch) if batch.status in ENDED else 0
        return cls(
            status=batch.status,
            done=counts.completed + counts.failed if counts else 0,
            failed=counts.failed if counts else 0,
            total=counts.total if counts else 0,
            output_tokens=output_tokens,
            average=output_tokens / seconds if seconds >= _SHORTEST_AVERAGE_SECONDS else None,
            waits_for=getattr(batch, "waits_for", None),
        )


def _elapsed_seconds(batch: Any) -> int:
    ends = (batch.completed_at, batch.failed_at, batch.expired_at, batch.cancelled_at)
    return max((end - batch.created_at for end in ends if end is not None), default=0)


@dataclass(slots=True)
class Rate:
    """Tokens and lines per second over the last seconds, from samples of growing totals."""

    _samples: deque[tuple[float, int, int]] = field(default_factory=deque)

    def add(self, now: float, progress: BatchProgress) -> None:
        self._samples.append((now, progress.output_tokens, progress.done))
        while len(self._samples) > 2 and now - self._samples[1][0] >= _RATE_WINDOW_SECONDS:
            self._samples.popleft()

    @property
    def tokens_per_second(self) -> float:
        return self._per_second(1)

    def seconds_left(self, progress: BatchProgress) -> float | None:
        """Return None while nothing is known."""
        lines_per_second = self._per_second(2)
        return (progress.total - progress.done) / lines_per_second if lines_per_second > 0 else None

    def _per_second(self, column: int) -> float:
        if len(self._samples) < 2:
            return 0.0
        first, last = self._samples[0], self._samples[-1]
        return (last[column] - first[column]) / max(last[0] - first[0], 1e-6)


@dataclass(slots=True)
class BudgetWait:
    """That a batch waits for its budget, told each time it begins to: the numbers change from look to look.

    That it waits for a worker is not told: `tokenmill run` is starting one.
    """

    _is_on: bool = False

    def news(self, progress: BatchProgress) -> str | None:
        """Return the sentence where the wait has just begun."""
        was_on, self._is_on = self._is_on, (progress.waits_for or "").startswith("waiting_budget")
        return progress.waits_for if self._is_on and not was_on else None


class Display(Protocol):
    def show(self, progress: BatchProgress) -> None: ...


@contextmanager
def progress_display(
    stream: TextIO | None = None, *, monotonic: Callable[[], float] = time.monotonic
) -> Iterator[Display]:
    """Open the display that suits `stream` (standard error by default)."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield PlainDisplay(stream, monotonic=monotonic)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[count]}"),
        TextColumn("{task.fields[rate]}"),
    )
    with Progress(*columns, console=Console(file=stream), expand=True) as bar:
        yield LiveDisplay(bar, monotonic=monotonic)


class LiveDisplay:
    def __init__(self, bar: Any, *, monotonic: Callable[[], float]) -> None:
        self._bar = bar
        self._monotonic = monotonic
        self._rate = Rate()
        self._task = bar.add_task("starting", total=None, count="", rate="")
        self._budget_wait = BudgetWait()

    def show(self, progress: BatchProgress) -> None:
        self._rate.add(self._monotonic(), progress)
        if (sentence := self._budget_wait.news(progress)) is not None:
            self._bar.console.print(sentence, markup=False, highlight=False)
        self._bar.update(
            self._task,
            description=progress.status.replace("_", " "),
            completed=progress.done,
            total=progress.total or None,
            count=f"{progress.done}/{progress.total}" if progress.total else "",
            rate=rate_and_eta(self._rate, progress),
        )


class PlainDisplay:
    """Writes a line when the status changes and every ten seconds in between; the end is for the caller to tell."""

    def __init__(self, stream: TextIO, *, monotonic: Callable[[], float]) -> None:
        self._stream = stream
        self._monotonic = monotonic
        self._rate = Rate()
        self._last_status: str | None = None
        self._last_line_at = 0.0
        self._budget_wait = BudgetWait()

    def show(self, progress: BatchProgress) -> None:
        now = self._monotonic()
        self._rate.add(now, progress)
        if progress.status in ENDED:
            return
        if (sentence := self._budget_wait.news(progress)) is not None:
            print(sentence, file=self._stream, flush=True)
        if progress.status == self._last_status and now - self._last_line_at < _LINE_EVERY_SECONDS:
            return
        self._last_status, self._last_line_at = progress.status, now
        parts = [progress.status.replace("_", " ")]
        if progress.total:
            parts += [f"{progress.done}/{progress.total}", rate_and_eta(self._rate, progress)]
        print("  ".join(part for part in parts if part), file=self._stream, flush=True)


def rate_and_eta(rate: Rate, progress: BatchProgress) -> str:
    """Return such as `812 output tok/s  ETA 0:03:20  2 failed`; the rate is that of now, at the end the average."""
    has_ended = progress.status in ENDED
    parts = [shown_rate(progress.average if has_ended else rate.tokens_per_second)]
    left = rate.seconds_left(progress)
    if left is not None and progress.done < progress.total and not has_ended:
        parts.append(f"ETA {clock(left)}")
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    return "  ".join(part for part in parts if part)


def shown_rate(tokens_per_second: float | None) -> str:
    """Return such as `812 output tok/s`; nothing for no rate."""
    return f"{tokens_per_second:,.0f} output tok/s" if tokens_per_second else ""


def clock(seconds: float) -> str:
    """Return h:mm:ss."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
