"""How fast the workers of a model are, and how far estimates are from what lines really use.

Pure: counts in, rates out; no SQL, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

_MEMORY_SECONDS = 60.0
"""Of busy time: what was measured so long ago counts for a third."""
_TRUSTED_LINES = 32
"""So many finished lines of a batch count as much as what is known of its model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What was measured of a model's workers."""

    tokens_per_second: float | None = None
    """Of one worker, prompt and output together; None until it was measured."""
    token_ratio: float = 1.0
    """Tokens that finished lines used, for each that was estimated."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """Tokens of each live worker since its engine started, when it was looked at last."""
    is_saturated: bool = False
    """Chunks waited then for a free worker."""


def measured(
    before: Rate, counters: Mapping[str, int], *, seconds: float, is_busy: bool, is_saturated: bool, token_ratio: float
) -> Rate:
    """Return the rate after another look at the workers' counters, `seconds` after the one before.

    Idle time says nothing. Where no chunk waited the workers could have done more: that counts only while nothing
    better is known.
    """
    known = before.tokens_per_second
    # A counter that fell is one of an engine that was restarted; a worker that was not there tells nothing yet.
    gains = [tokens - before.counters[name] for name, tokens in counters.items() if name in before.counters]
    rate = sum(gains) / len(gains) / seconds if gains and min(gains) >= 0 and seconds > 0 else 0.0
    is_full = is_saturated and before.is_saturated
    if rate > 0 and is_busy and (known is None or is_full or rate > known):
        weight = 1.0 if known is None else 1.0 - math.exp(-seconds / _MEMORY_SECONDS)
        known = rate if known is None else known + weight * (rate - known)
    return Rate(tokens_per_second=known, token_ratio=token_ratio, counters=dict(counters), is_saturated=is_saturated)


def tokens_of_a_line(*, estimated: float, token_ratio: float, num_finished: int, used: float) -> float:
    """Return what a further line of a batch is expected to use: its estimate, corrected by what finished ones used.

    `estimated` is one line's, `used` the sum over the `num_finished` lines of this batch.
    """
    return (_TRUSTED_LINES * estimated * token_ratio + used) / (_TRUSTED_LINES + num_finished)
