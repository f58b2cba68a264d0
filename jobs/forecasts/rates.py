"""How fast the workers of a model are, and how far estimates are from what lines really use.

Pure: counts in, rates out; no SQL, no clock. Tokens are computed ones: without cached tokens of prompts, and without
copies of identical lines, which nobody computes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_HALF_LIFE_SECONDS = 600.0
"""What was measured loses half of its weight in so long, whether anything runs or not."""
_MOST_SECONDS = 120.0
"""Of evidence for a rate: older looks count for less and less, so that it follows what workers do now."""
_LEAST_SECONDS = 1.0
"""With less evidence than that a rate is forgotten: 70 minutes after its workers ran last."""
_RECENT_SECONDS = 30.0
"""Of looks that are summed up apart: single ones are lumps, as steps and flushes are."""
_CONTRADICTION = 1.8
"""Where these differ from the rate by more than this factor, the work is of another kind: they take its place."""
_LEAST_RECENT_SECONDS = 15.0
_MOST_LINES = 1000.0
_DOUBTFUL_LINES = 1.0
"""So many lines are thought to use all that was estimated: they count where little else is known."""
_TRUSTED_LINES = 32
"""So many finished lines of a batch count as much as what is known of its model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What was measured of a model's workers, and how much that weighs."""

    tokens_per_second: float | None = None
    """Of one worker that has all that it can take. None: not measured, or too long ago."""
    evidence_seconds: float = 0.0
    recent_seconds: float = 0.0
    recent_tokens: float = 0.0
    """Of one worker in these seconds, the last ones."""
    ended_ratio: float = 1.0
    """Tokens that lines of the model used, for each that was estimated; `token_ratio` is what to expect of others."""
    evidence_lines: float = 0.0
    line_seconds: float = 0.0
    """That lines were in engines, one counted for each, and"""
    ended_lines: float = 0.0
    """how many lines these did in it, parts of lines among them."""
    is_saturated: bool = False
    """Chunks waited for a free worker at the last look."""

    @property
    def token_ratio(self) -> float:
        """Return what a further line uses of its estimate: the less is known, the nearer to all of it."""
        known = self.ended_ratio * self.evidence_lines + _DOUBTFUL_LINES
        return known / (self.evidence_lines + _DOUBTFUL_LINES)

    @property
    def seconds_of_a_line(self) -> float | None:
        """Return how long an engine has a line, from its start to its end; None where that is not known."""
        return self.line_seconds / self.ended_lines if self.ended_lines >= 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is found between one look and the next."""

    seconds: float
    """0 where no earlier look is known, or it was too long ago."""
    tokens: float
    """Computed in that time, of lines that have not ended, too."""
    num_workers: int
    is_saturated: bool
    used_tokens: float
    """Of all ended lines of the open batches, and"""
    estimated_tokens: float
    """what was estimated for them."""
    num_lines: int
    """How many these are."""
    running_lines: int = 0
    """In an engine now."""
    done_lines: float = 0.0
    """In that time, parts of lines among them."""


def aged(rate: Rate, seconds: float) -> Rate:
    """Return a rate so long after it was measured: less of it counts."""
    kept = 0.5 ** (seconds / _HALF_LIFE_SECONDS)
    evidence_seconds = rate.evidence_seconds * kept
    return replace(
        rate,
        tokens_per_second=rate.tokens_per_second if evidence_seconds >= _LEAST_SECONDS else None,
        evidence_seconds=evidence_seconds,
        recent_seconds=rate.recent_seconds * kept,
        recent_tokens=rate.recent_tokens * kept,
        evidence_lines=rate.evidence_lines * kept,
        line_seconds=rate.line_seconds * kept,
        ended_lines=rate.ended_lines * kept,
    )


def measured(before: Rate, look: Look) -> Rate:
    """Return the rate after another look at the workers; `before` is aged already.

    The time in which a queue comes or goes says nothing. Where no chunk waited the workers could have done more: that
    counts only while nothing better is known.
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
    # Fewer than none: lines began anew, whose tokens were counted before.
    return _with_speed(rate, max(0.0, look.tokens) / look.num_workers, look)


def _with_speed(rate: Rate, tokens: float, look: Look) -> Rate:
    """Return the rate after `tokens` of one worker."""
    known = rate.tokens_per_second
    if not look.is_saturated and tokens <= (known or 0.0) * look.seconds:
        return rate
    kept = math.exp(-look.seconds / _RECENT_SECONDS)
    recent_seconds, recent_tokens = rate.recent_seconds * kept + look.seconds, rate.recent_tokens * kept + tokens
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
    found, lines = look.used_tokens / look.estimated_tokens, min(float(look.num_lines), _MOST_LINES)
    # The same lines are seen at each look while their batch is open: what was known of them is not counted again.
    older = max(0.0, before.evidence_lines - lines)
    mean = (found * lines + before.ended_ratio * older) / (lines + older)
    return replace(before, ended_ratio=mean, evidence_lines=lines + older)


def tokens_of_a_line(*, estimated: float, token_ratio: float, num_finished: int, used: float) -> float:
    """Return what a further line of a batch is expected to use: its estimate, corrected by what finished ones used.

    `estimated` is one line's, `used` the sum over the `num_finished` lines of this batch.
    """
    return (_TRUSTED_LINES * estimated * token_ratio + used) / (_TRUSTED_LINES + num_finished)
