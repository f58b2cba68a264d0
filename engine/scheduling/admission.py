"""Admission: may one more sequence start, given what the running ones may still need. Numbers only; no torch.

Every sequence holds one block more for each `block_size` tokens until it ends and gives all of them back, so the pool's
use rises and falls; checking the moments just before a sequence is expected to end is enough.
"""

from __future__ import annotations

from collections.abc import Sequence as AnySequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from engine.config import Admission
from engine.scheduling.blocks import BlockPool, num_blocks_for
from engine.scheduling.request import Sequence

_FIRST_SHARE = 0.5
_SMOOTHING = 0.05


class OutputForecast:
    """Learn from finished requests which share of max_tokens is really generated; starts at one half.

    Requests that ignore the end-of-sequence token (and have no other stop) generate all of it.
    """

    def __init__(self) -> None:
        self.share = _FIRST_SHARE

    def observe(self, sequence: Sequence) -> None:
        """Add a finished sequence to the moving mean."""
        if sequence.stop_token_ids and sequence.request.max_tokens > 0:
            done = sequence.num_output_tokens / sequence.request.max_tokens
            self.share += _SMOOTHING * (done - self.share)

    def raise_after_preemption(self) -> None:
        """Raise the forecast: the pool ran out, so it was too low."""
        self.share += (1.0 - self.share) / 4

    def remaining_tokens(self, sequences: AnySequence[Sequence]) -> npt.NDArray[np.int64]:
        """Return how many more tokens each sequence is expected to generate, at least one.

        In arrays, because it is computed for every running sequence whenever one may start.
        """
        num_tokens = np.array([sequence.num_tokens for sequence in sequences], dtype=np.int64)
        num_at_most = np.array([sequence.max_total_tokens for sequence in sequences], dtype=np.int64)
        num_prompt = np.array([sequence.num_prompt_tokens for sequence in sequences], dtype=np.int64)
        is_open = np.array([bool(sequence.stop_token_ids) for sequence in sequences])
        most = num_at_most - num_tokens
        expected = ((num_at_most - num_prompt) * self.share).astype(np.int64) - (num_tokens - num_prompt)
        # A sequence past its forecast is expected to need half of what it may still take.
        forecast = np.where(expected > 0, np.minimum(most, expected), most // 2)
        remaining: npt.NDArray[np.int64] = np.maximum(1, np.where(is_open, forecast, most))
        return remaining


def peak_blocks(sequences: AnySequence[Sequence], forecast: OutputForecast, *, block_size: int) -> int:
    """Return the most blocks that the sequences are expected to hold at one time, shared blocks counted twice."""
    remaining = forecast.remaining_tokens(sequences)
    num_tokens = np.array([sequence.num_tokens for sequence in sequences], dtype=np.int64)
    order = np.lexsort((-num_tokens, -remaining))
    remaining, num_tokens = remaining[order], num_tokens[order]
    alive = np.arange(1, len(sequences) + 1)
    # Just before the sequence in row i ends, rows 0..i are alive and each has grown by remaining[i] tokens.
    tokens = np.cumsum(num_tokens) + alive * remaining
    # A sequence's last block is half empty on average; rounding up each of them would leave that half unused.
    return int(np.max(tokens / block_size + alive * 0.5)) + 1


def most_blocks(sequences: AnySequence[Sequence], *, block_size: int) -> int:
    """Return an upper bound on `peak_blocks` under any forecast: the blocks if all are at their longest at one time.

    It takes a twentieth of the time of a forecast.
    """
    num = len(sequences)
    num_tokens = sum(map(_max_total_tokens, sequences)) + num  # at least one more token of each is expected
    return int(num_tokens / block_size + num * 0.5) + 1


_max_total_tokens = attrgetter("max_total_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why a sequence may not start: the blocks needed, now or at the peak, and the blocks available then."""

    num_needed_blocks: int
    num_available_blocks: int


class Gate:
    """Hold back waiting sequences while blocks are short."""

    def __init__(self, pool: BlockPool, forecast: OutputForecast, *, admission: Admission) -> None:
        self._pool = pool
        self._forecast = forecast
        self._admission = admission

    def shortage(
        self, sequence: Sequence, shared: list[int], running: list[Sequence], *, num_gained_blocks: int = 0
    ) -> Shortage | None:
        """Return the shortage of a sequence that can share those blocks beside the running ones; None if it may start.

        `num_gained_blocks` are expected to be available in addition, or fewer if it is negative.
        """
        pool = self._pool
        needed = num_blocks_for(sequence.num_tokens, pool.block_size) - len(shared) + pool.num_unowned(shared)
        if running and self._admission is Admission.PROMPT:
            # One spare block per running sequence keeps a victim from coming back only to be preempted again.
            needed += len(running) if sequence.num_preemptions else 0
        num_available = pool.num_available + num_gained_blocks
        if needed > num_available:
            return Shortage(num_needed_blocks=needed, num_available_blocks=num_available)
        if not running:
            return None  # alone it always fits (`can_ever_hold` was checked), so the queue always moves
        group = [*running, sequence]
        if most_blocks(group, block_size=pool.block_size) - len(shared) <= pool.capacity:
            return None  # independent of the forecast: many short requests start in one step
        peak = self._peak(group, len(shared))
        return Shortage(num_needed_blocks=peak, num_available_blocks=pool.capacity) if peak > pool.capacity else None

    def _peak(self, group: list[Sequence], num_shared: int) -> int:
        if self._admission is Admission.PROMPT:
            return 0
        return peak_blocks(group, self._forecast, block_size=self._pool.block_size) - num_shared
