"""How fast the workers of a model are, and how far estimates are from what lines really use.

Pure: counts in, rates out; no SQL, no clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_MEMORY_SECONDS = 60.0
"""Of busy time: what was measured so long ago counts for a third."""
_TRUSTED_LINES = 32
"""So many finished lines of a batch count as much as what is known of its model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What was measured of a model's workers."""

    tokens_per_second: float | None = None
    """Of one worker: those of the lines that it finished, prompt and output together. None until it was measured."""
    token_ratio: float = 1.0
    """Tokens that finished lines used, for each that was estimated."""
    is_saturated: bool = False
    """Chunks waited for a free worker when it was looked at last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is found between one look and the next."""

    seconds: float
    tokens: int
    """Of lines that were finished since the look before."""
    num_workers: int
    is_saturated: bool
    is_warm: bool
    """Of the open batches as many lines are finished as run now: before that the short ones among the first lines end,
    and nobody sees what the others have had."""
    token_ratio: float


def measured(before: Rate, look: Look) -> Rate:
    """Return the rate after another look at the workers.

    The time in which a queue comes or goes says nothing. Where no chunk waited the workers could have done more: that
    counts only while nothing better is known.
    """
    known = before.tokens_per_second
    is_steady = look.is_warm and look.is_saturated == before.is_saturated
    if is_steady and look.tokens and look.num_workers and look.seconds > 0:
        rate = look.tokens / look.seconds / look.num_workers
        if known is None:
            known = rate
        elif look.is_saturated or rate > known:
            known += (1.0 - math.exp(-look.seconds / _MEMORY_SECONDS)) * (rate - known)
    return Rate(tokens_per_second=known, token_ratio=look.token_ratio, is_saturated=look.is_saturated)


def tokens_of_a_line(*, estimated: float, token_ratio: float, num_finished: int, used: float) -> float:
    """Return what a further line of a batch is expected to use: its estimate, corrected by what finished ones used.

    `estimated` is one line's, `used` the sum over the `num_finished` lines of this batch.
    """
    return (_TRUSTED_LINES * estimated * token_ratio + used) / (_TRUSTED_LINES + num_finished)
