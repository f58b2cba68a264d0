"""Remaining time of a batch: until its last chunk is claimed, and then until its longest line ends.

Pure. Not corrected by earlier errors: `jobs.forecasts.looks` does that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from jobs.forecasts.finish_times import BatchLoad, Forecast, seconds_to_serve
from jobs.forecasts.rates import Rate, tokens_of_a_line
from jobs.forecasts.seen import BatchSeen, History

_LAST_SHARE = 0.5
"""Average part of a running line's time that is left."""
_LAST_LINES = 64
"""Number of lines of a batch assumed to be running when its last chunk is claimed, where fewer are now."""
_MODEL_LINES = 16.0
"""Number of lines of a batch that count as much as what is known of its model."""
LEAST_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLeft:
    """Remaining time of a batch, before correction by earlier errors."""

    queued_seconds: float
    """Until its last chunk is claimed."""
    last_seconds: float
    """From then on."""

    @property
    def seconds(self) -> float:
        return self.queued_seconds + self.last_seconds


def tokens_of(batch: BatchSeen, rate: Rate) -> float:
    """Return the expected tokens of a further line of a batch."""
    return tokens_of_a_line(
        estimated=batch.estimated_tokens,
        token_ratio=rate.token_ratio,
        num_finished=batch.num_computed,
        used=batch.used_tokens,
    )


def output_tokens_of(batch: BatchSeen, rate: Rate) -> float:
    """Return the expected output tokens of a further line of a batch."""
    return tokens_of_a_line(
        estimated=batch.estimated_output_tokens,
        token_ratio=rate.token_ratio,
        num_finished=batch.num_computed,
        used=batch.output_tokens,
    )


def begun_lines(batch: BatchSeen, rate: Rate) -> float:
    """Return the unfinished lines' progress, summed up in lines, by the parts of their answers.

    Prompt progress is not counted: prompts are fast, computed all at once where a batch begins, and say nothing about
    the rate afterwards.
    """
    expected = output_tokens_of(batch, rate)
    return min(batch.begun_output_tokens / expected, float(batch.leased_lines)) if expected > 0 else 0.0


def load_of(batch: BatchSeen, rate: Rate) -> BatchLoad:
    """Return the rest of a batch in tokens."""
    of_a_line = tokens_of(batch, rate)
    return replace(
        batch.load,
        ready_tokens=batch.ready_lines * of_a_line,
        leased_tokens=(batch.leased_lines - begun_lines(batch, rate)) * of_a_line,
        leased_lines=batch.leased_lines,
    )


def time_left(
    batch: BatchSeen, expected: Forecast, history: History, rate: Rate, *, num_workers: float
) -> TimeLeft | None:
    """Return the remaining time of a batch; None where unknown."""
    last = _seconds_of_last_lines(batch, history, rate)
    if last is None or not num_workers:
        return None
    if not batch.ready_lines:
        return TimeLeft(queued_seconds=0.0, last_seconds=max(last, LEAST_SECONDS))
    if rate.tokens_per_second is None:
        return None
    queued = seconds_to_serve(expected.tokens_to_claim, tokens_per_second=rate.tokens_per_second * num_workers)
    return None if queued is None else TimeLeft(queued_seconds=queued, last_seconds=last)


def _seconds_of_last_lines(batch: BatchSeen, history: History, rate: Rate) -> float | None:
    """Return how long the last of a batch's lines run, until the longest ends.

    The ratio to the average time of a line lies between 1 and that of the longest possible answer, the closer to the
    latter the more lines there are; and it is larger where lines wait before the engine. It was fitted to the ends of
    simulated batches (docs/scheduling.md). It does not fall with the time since the last claim: lines that still run
    then are long.
    """
    of_a_line = _seconds_of_a_line(history, rate)
    if of_a_line is None:
        return None
    num_lines = batch.leased_lines if not batch.ready_lines else max(batch.leased_lines, _LAST_LINES)
    if not num_lines:
        return LEAST_SECONDS
    mean = output_tokens_of(batch, rate)
    longest = max(1.0, batch.estimated_output_tokens / mean) if mean > 0 else 1.0
    waits = 1 + (batch.leased_lines - batch.running_lines) / max(batch.running_lines, 1)
    return _LAST_SHARE * waits * of_a_line * math.pow(longest, 1 - 1 / (1 + math.log1p(num_lines)))


def _seconds_of_a_line(history: History, rate: Rate) -> float | None:
    """Return how long a line of a batch is in an engine, on average."""
    known, done = rate.seconds_of_a_line, max(0.0, history.done_lines - history.first_lines)
    if known is not None:
        return (history.line_seconds + _MODEL_LINES * known) / (done + _MODEL_LINES)
    return history.line_seconds / done if done > 0 else None
