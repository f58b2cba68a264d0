"""The progress of a batch: figures, rate, and what it waits for."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_HALF_LIFE_SECONDS = 30.0
"""Lines end in bursts, those of a chunk at about the same time: a shorter half-life would follow each burst."""
_SHORTEST_LOOK_SECONDS = 5.0  # no estimate before: the first lines to end are short ones
_SHORTEST_AVERAGE_SECONDS = 5  # times are in whole seconds, too coarse for a shorter batch

ENDED = frozenset({"completed", "failed", "expired", "cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """The state of a batch at one moment. Tokens are those of finished lines."""

    status: str
    done: int
    failed: int
    total: int
    """0 until its file is validated."""
    output_tokens: int
    input_tokens: int = 0
    average: float | None = None
    """Output tokens per second from creation to end; None for an open or short batch."""
    waits_for: str | None = None
    """A sentence; other servers have neither this nor the following fields."""
    eta: int | None = None
    """Expected end, in Unix seconds."""
    eta_earliest: int | None = None
    eta_latest: int | None = None
    """Most batches end between these two."""
    position: int | None = None
    """Batches whose next lines come first; 0 for a running one."""
    running_lines: int | None = None
    """Lines in an engine now."""
    cost_micros: int | None = None
    currency: str = ""

    @classmethod
    def of(cls, batch: Any) -> BatchProgress:
        """Return the progress of an openai Batch; servers omit counts that they do not know yet."""
        counts, usage = batch.request_counts, getattr(batch, "usage", None)
        output_tokens = usage.output_tokens if usage else 0
        seconds = _elapsed_seconds(batch) if batch.status in ENDED else 0
        return cls(
            status=batch.status,
            done=counts.completed + counts.failed if counts else 0,
            failed=counts.failed if counts else 0,
            total=counts.total if counts else 0,
            output_tokens=output_tokens,
            input_tokens=getattr(usage, "input_tokens", 0),
            average=output_tokens / seconds if seconds >= _SHORTEST_AVERAGE_SECONDS else None,
            waits_for=getattr(batch, "waits_for", None),
            eta=getattr(batch, "eta", None),
            eta_earliest=getattr(batch, "eta_earliest", None),
            eta_latest=getattr(batch, "eta_latest", None),
            position=getattr(batch, "position", None),
            running_lines=getattr(batch, "running_lines", None),
            cost_micros=getattr(batch, "cost_micros", None),
            currency=getattr(batch, "currency", ""),
        )


def _elapsed_seconds(batch: Any) -> int:
    ends = (batch.completed_at, batch.failed_at, batch.expired_at, batch.cancelled_at)
    return max((end - batch.created_at for end in ends if end is not None), default=0)


@dataclass(slots=True)
class Rate:
    """Tokens and lines per second, as an exponentially decaying average over samples of growing totals.

    The sums of work and of time are halved every `_HALF_LIFE_SECONDS`; their quotient begins as the average so far and
    later follows the last minute.
    """

    _last: tuple[float, int, int] | None = None
    _seconds: float = 0.0
    _tokens: float = 0.0
    _lines: float = 0.0

    def add(self, now: float, progress: BatchProgress) -> None:
        if self._last is not None:
            before, tokens, lines = self._last
            kept = 0.5 ** ((now - before) / _HALF_LIFE_SECONDS)
            self._seconds = self._seconds * kept + now - before
            self._tokens = self._tokens * kept + progress.output_tokens - tokens
            self._lines = self._lines * kept + progress.done - lines
        self._last = (now, progress.output_tokens, progress.done)

    @property
    def tokens_per_second(self) -> float:
        return self._tokens / self._seconds if self._seconds else 0.0

    def seconds_left(self, progress: BatchProgress) -> float | None:
        """Return the estimate; None while nothing is known."""
        if self._seconds < _SHORTEST_LOOK_SECONDS or self._lines < 0.5:
            return None
        return (progress.total - progress.done) * self._seconds / self._lines


@dataclass(slots=True)
class Waiting:
    """Reports what a batch waits for, once per reason; numbers in it may change."""

    is_budget_alone: bool = False
    """Report only waits for the budget: `tokenmill run` is starting a worker."""
    _reported: str | None = None

    def sentence(self, progress: BatchProgress) -> str | None:
        """Return the sentence to show now."""
        if progress.waits_for is None or progress.status in ENDED:
            return None
        is_shown = not self.is_budget_alone or progress.waits_for.startswith("waiting_budget")
        return progress.waits_for if is_shown else None

    def news(self, progress: BatchProgress) -> str | None:
        """Return the sentence if it differs from the last one, apart from numbers."""
        sentence = self.sentence(progress)
        words = None if sentence is None else re.sub(r"\d[\d,.]*", "#", sentence)
        is_new = words != self._reported
        self._reported = words
        return sentence if is_new else None


def figures(rate: Rate, progress: BatchProgress, *, now: Callable[[], float] = time.time) -> list[str]:
    """Return such as `ETA 0:03:20 (0:02:50 to 0:04:10)`, `812 output tok/s`, `2 failed`, `tokens 3,100 in, 940 out`.

    The rate is the current one, at the end the average; the ETA is the server's if it has one.
    """
    has_ended = progress.status in ENDED
    parts = []
    if progress.done < progress.total and not has_ended:
        parts.append(_time_left(rate, progress, now()))
    parts.append(shown_rate(progress.average if has_ended else rate.tokens_per_second))
    if progress.running_lines and not has_ended:
        parts.append(f"{progress.running_lines:,} running")
    if progress.failed:
        parts.append(f"{progress.failed:,} failed")
    if progress.input_tokens or progress.output_tokens:
        parts.append(f"tokens {_short(progress.input_tokens)} in, {_short(progress.output_tokens)} out")
    if progress.cost_micros:
        parts.append(f"cost {money(progress.cost_micros)} {progress.currency}".rstrip())
    if progress.position and not has_ended:
        parts.append(f"{progress.position:,} {'batch' if progress.position == 1 else 'batches'} before it")
    return [part for part in parts if part]


def _time_left(rate: Rate, progress: BatchProgress, now: float) -> str:
    """Return the ETA; empty if it is not known."""
    left = rate.seconds_left(progress) if progress.eta is None else max(0.0, progress.eta - now)
    if left is None:
        return ""
    if progress.eta is None or progress.eta_earliest is None or progress.eta_latest is None:
        return f"ETA {clock(left)}"
    earliest, latest = (max(0.0, moment - now) for moment in (progress.eta_earliest, progress.eta_latest))
    return f"ETA {clock(left)} ({clock(earliest)} to {clock(latest)})"


def _short(count: int) -> str:
    """Return such as `940`, `31,000` or `13.2M`."""
    return f"{count:,}" if count < 1_000_000 else f"{count / 1e6:,.1f}M"


def shown_count(progress: BatchProgress) -> str:
    return f"{progress.done:,}/{progress.total:,}" if progress.total else ""


def shown_rate(tokens_per_second: float | None) -> str:
    """Return such as `812 output tok/s`; empty for no rate."""
    return f"{tokens_per_second:,.0f} output tok/s" if tokens_per_second and tokens_per_second >= 0.5 else ""


def money(micros: int) -> str:
    """Return an amount in currency with at least two decimal places, such as `0.000125`."""
    whole, _, digits = f"{micros / 1e6:,.6f}".partition(".")
    return f"{whole}.{digits.rstrip('0').ljust(2, '0')}"


def clock(seconds: float) -> str:
    """Return h:mm:ss."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
