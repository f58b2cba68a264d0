"""Speed of a model's workers, and the ratio of used to estimated tokens.

Pure: counts in, rates out; no SQL, no clock. Tokens are computed ones: without cached prompt tokens, and without copies
of identical lines, which nobody computes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_HALF_LIFE_SECONDS = 600.0
"""Half-life of measurements, whether anything runs or not."""
_MOST_SECONDS = 120.0
"""Most evidence kept for a rate, in seconds: older measurements fade, so that the rate follows the workers."""
_LEAST_SECONDS = 1.0
"""With less evidence the rate is dropped: 70 minutes after its workers last ran."""
_RECENT_SECONDS = 30.0
"""Seconds of measurements that are summed up separately: single ones are uneven, as steps and flushes are."""
_CONTRADICTION = 1.8
"""Where recent measurements differ from the rate by more than this factor, the work has changed: they replace it."""
_LEAST_RECENT_SECONDS = 15.0
_MOST_LINES = 1000.0
_DOUBTFUL_LINES = 1.0
"""Number of lines assumed to use their full estimate: they matter where little else is known."""
_TRUSTED_LINES = 32
"""Number of finished lines of a batch that count as much as what is known of its model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Measured speed of a model's workers, and its weight as evidence."""

    tokens_per_second: float | None = None
    """Per fully loaded worker. None: not measured, or too long ago."""
    evidence_seconds: float = 0.0
    recent_seconds: float = 0.0
    recent_tokens: float = 0.0
    """Per worker, in `recent_seconds`."""
    ended_ratio: float = 1.0
    """Used tokens per estimated token of the model's ended lines; `token_ratio` is the expectation for others."""
    evidence_lines: float = 0.0
    line_seconds: float = 0.0
    """Sum over lines of the time that each was in an engine."""
    ended_lines: float = 0.0
    """Lines completed in that time, with fractions of lines."""
    is_saturated: bool = False
    """Whether chunks waited for a free worker at the last measurement."""

    @property
    def token_ratio(self) -> float:
        """Return the expected ratio for a further line: the less is known, the closer to 1."""
        known = self.ended_ratio * self.evidence_lines + _DOUBTFUL_LINES
        return known / (self.evidence_lines + _DOUBTFUL_LINES)

    @property
    def seconds_of_a_line(self) -> float | None:
        """Return how long a line is in an engine, from start to end; None where unknown."""
        return self.line_seconds / self.ended_lines if self.ended_lines >= 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Measurements between two points in time."""

    seconds: float
    """0 where there is no earlier measurement, or it was too long ago."""
    tokens: float
    """Computed in that time, including tokens of unfinished lines."""
    num_workers: float
    """In average ones: `speeds.as_workers`."""
    is_saturated: bool
    used_tokens: float
    """Of all ended lines of the open batches."""
    estimated_tokens: float
    """Estimate for the same lines."""
    num_lines: int
    """Number of these lines."""
    running_lines: int = 0
    """In an engine now."""
    done_lines: float = 0.0
    """In that time, with fractions of lines."""


def aged(rate: Rate, seconds: float) -> Rate:
    """Return a rate after this time: its evidence counts less."""
    factor = 0.5 ** (seconds / _HALF_LIFE_SECONDS)
    evidence_seconds = rate.evidence_seconds * factor
    return replace(
        rate,
        tokens_per_second=rate.tokens_per_second if evidence_seconds >= _LEAST_SECONDS else None,
        evidence_seconds=evidence_seconds,
        recent_seconds=rate.recent_seconds * factor,
        recent_tokens=rate.recent_tokens * factor,
        evidence_lines=rate.evidence_lines * factor,
        line_seconds=rate.line_seconds * factor,
        ended_lines=rate.ended_lines * factor,
    )


def measured(before: Rate, look: Look) -> Rate:
    """Return the rate after another measurement; `before` is aged already.

    Intervals in which a queue appears or vanishes are ignored. Where no chunk waited the workers could have done more:
    such a measurement counts only while nothing better is known.
    """
    rate = replace(_with_ratio(before, look), is_saturated=look.is_saturated)
    if not look.seconds:
        return rate
    rate = replace(
        rate,
        line_seconds=rate.line_seconds + look.running_lines * look.seconds,
        ended_lines=rate.ended_lines + max(0.0, look.done_lines),
    )
    is_steady = look.is_saturated == before.is_saturated
    has_run = look.tokens > 0 or look.running_lines > 0
    if not is_steady or not has_run or not look.num_workers:
        return rate
    # Negative: lines were restarted, whose tokens were counted before.
    return _with_speed(rate, max(0.0, look.tokens) / look.num_workers, look)


def _with_speed(rate: Rate, tokens: float, look: Look) -> Rate:
    """Return the rate after `tokens` per worker."""
    known = rate.tokens_per_second
    if not look.is_saturated and tokens <= (known or 0.0) * look.seconds:
        return rate
    factor = math.exp(-look.seconds / _RECENT_SECONDS)
    recent_seconds, recent_tokens = rate.recent_seconds * factor + look.seconds, rate.recent_tokens * factor + tokens
    rate = replace(rate, recent_seconds=recent_seconds, recent_tokens=recent_tokens)
    recent = recent_tokens / recent_seconds
    is_other_work = known is not None and not known / _CONTRADICTION < recent < known * _CONTRADICTION
    if known is None or (is_other_work and recent_seconds >= _LEAST_RECENT_SECONDS):
        return replace(rate, tokens_per_second=recent or None, evidence_seconds=recent_seconds)
    seconds = rate.evidence_seconds + look.seconds
    mean = (known * rate.evidence_seconds + tokens) / seconds
    return replace(rate, tokens_per_second=mean, evidence_seconds=min(seconds, _MOST_SECONDS))


def _with_ratio(before: Rate, look: Look) -> Rate:
    if not look.used_tokens or not look.estimated_tokens:
        return before
    ratio, lines = look.used_tokens / look.estimated_tokens, min(float(look.num_lines), _MOST_LINES)
    # The same lines appear in each measurement while their batch is open: they must not count again.
    older = max(0.0, before.evidence_lines - lines)
    mean = (ratio * lines + before.ended_ratio * older) / (lines + older)
    return replace(before, ended_ratio=mean, evidence_lines=lines + older)


def tokens_of_a_line(*, estimated: float, token_ratio: float, num_finished: int, used: float) -> float:
    """Return the expected tokens of a further line of a batch: its estimate, corrected by what finished ones used.

    `estimated` is one line's, `used` the sum over the `num_finished` lines of this batch.
    """
    return (_TRUSTED_LINES * estimated * token_ratio + used) / (_TRUSTED_LINES + num_finished)
