"""Decide whether one more sequence may start, from what the running ones may still need. Numbers only; no torch.

Every sequence holds one block more for each `block_size` tokens until it ends and gives all of them back, so the pool's
use rises and falls; it is enough to look at the moments just before a sequence is expected to end.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from engine.request import Sequence

_FIRST_SHARE = 0.5
_SMOOTHING = 0.05


class OutputForecast:
    """Learn what share of max_tokens requests really generate, from those that finished; starts at one half.

    Requests that ignore the end-of-sequence token (and have no other stop) generate all of it.
    """

    def __init__(self) -> None:
        self.share = _FIRST_SHARE

    def observe(self, sequence: Sequence) -> None:
        """Take a finished sequence into the moving mean."""
        if sequence.stop_token_ids and sequence.request.max_tokens > 0:
            done = sequence.num_output_tokens / sequence.request.max_tokens
            self.share += _SMOOTHING * (done - self.share)

    def raise_after_preemption(self) -> None:
        """Expect more: the pool ran out, so the forecast was too low."""
        self.share += (1.0 - self.share) / 4

    def remaining_tokens(self, sequence: Sequence) -> int:
        """Return how many more tokens the sequence is expected to generate, at least one."""
        most = sequence.max_total_tokens - sequence.num_tokens
        if not sequence.stop_token_ids:
            return max(1, most)
        expected = int(sequence.request.max_tokens * self.share) - sequence.num_output_tokens
        # Past its forecast a sequence is taken to need half of what it may still take.
        return max(1, min(most, expected if expected > 0 else most // 2))


def peak_blocks(sequences: Iterable[Sequence], forecast: OutputForecast, *, block_size: int) -> int:
    """Return the most blocks that the sequences are expected to hold at one time, shared blocks counted twice."""
    pairs = [(forecast.remaining_tokens(sequence), sequence.num_tokens) for sequence in sequences]
    remaining, held = np.array(sorted(pairs, reverse=True), dtype=np.int64).T
    alive = np.arange(1, len(pairs) + 1)
    # Just before the sequence in row i ends, rows 0..i are alive and each has grown by remaining[i] tokens.
    tokens = np.cumsum(held) + alive * remaining
    # A sequence's last block is half empty on average; rounding up each of them would leave that half unused.
    return int(np.max(tokens / block_size + alive * 0.5)) + 1
