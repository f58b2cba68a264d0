"""Input and output of the scheduler: limits, and one step's plan. Values only; no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress

import numpy as np

from engine.scheduling.request import Sequence
from engine.scheduling.seat_numbers import Int64
from engine.scheduling.seat_table import SeatTable


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCopy:
    """Pairs of a block of the device's cache and a block of host memory."""

    device_blocks: list[int]
    host_blocks: list[int]


def _none() -> Int64:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class StepPlan:
    """One step's work: sequence i computes tokens `starts[i] : starts[i] + counts[i]`, its drafts last.

    A token is sampled after each of its last `num_sampled[i]` ones: none in the middle of a prompt, otherwise one, and
    one more for each draft.
    """

    sequences: list[Sequence] = field(default_factory=list)
    rows: Int64 = field(default_factory=_none)
    """The row of each sequence's seat; `serials` tell whether it still has it."""
    serials: Int64 = field(default_factory=_none)
    starts: Int64 = field(default_factory=_none)
    counts: Int64 = field(default_factory=_none)
    num_sampled: Int64 = field(default_factory=_none)
    num_cached: Int64 = field(default_factory=_none)
    """Tokens of each sequence's prompt that the prefix cache had."""
    asks_more: Int64 = field(default_factory=_none)
    """1 for each sequence of which more than tokens is recorded, else 0."""
    copies_out: list[BlockCopy] = field(default_factory=list)
    copies_in: list[BlockCopy] = field(default_factory=list)
    grammar_seconds: dict[Sequence, float] = field(default_factory=dict)
    """How long each sequence's grammar delayed the others; measured where the masks are written."""

    def add(self, table: SeatTable, sequences: list[Sequence], rows: Int64, counts: Int64) -> None:
        """Plan the next `counts[i]` tokens of each sequence; all have a seat, in these rows of the table."""
        numbers = table.numbers
        starts = numbers.num_computed_tokens[rows]
        num_sampled = np.maximum(starts + counts - numbers.num_tokens[rows] + 1, 0)
        more: tuple[Int64, ...] = (
            *(rows, numbers.serial[rows], starts, counts, num_sampled),
            *(numbers.num_cached_tokens[rows], numbers.asks_more[rows]),
        )
        if self.sequences:
            sequences = [*self.sequences, *sequences]
            before = tuple(getattr(self, name) for name in _BY_SEQUENCE)
            more = tuple(map(np.concatenate, zip(before, more, strict=True)))
        self._set(sequences, more)

    def prune(self, table: SeatTable) -> list[int] | None:
        """Drop what is no longer needed, now that all tokens of the step before are known.

        Dropped are sequences that have ended, and samples of tokens that a grammar has forced meanwhile. Return the
        rows of logits that are still sampled, None for all.
        """
        is_kept = table.hold(self.rows, self.serials)
        is_newest = self.starts + self.counts == table.numbers.num_tokens[self.rows]
        is_sampled = is_kept & is_newest & (self.num_sampled > 0)
        if is_kept.all() and (is_sampled == (self.num_sampled > 0)).all():
            return None
        rows = is_sampled.repeat(self.num_sampled).nonzero()[0].tolist()
        self.num_sampled = np.where(is_sampled, self.num_sampled, 0)
        kept = list(compress(self.sequences, is_kept.tolist()))
        self._set(kept, tuple(getattr(self, name)[is_kept] for name in _BY_SEQUENCE))
        return rows

    def leading(self, count: int) -> StepPlan:
        """Return a plan of the first sequences alone."""
        plan = StepPlan()
        plan._set(self.sequences[:count], tuple(getattr(self, name)[:count] for name in _BY_SEQUENCE))
        return plan

    def num_kept(self) -> list[int]:
        """Once the samples are appended, return how many of them each sampling sequence has kept, in order."""
        ends = (self.starts + self.counts + 1 - self.num_sampled).tolist()
        rows = zip(self.sequences, ends, self.num_sampled.tolist(), strict=True)
        return [sequence.num_tokens - end for sequence, end, sampled in rows if sampled]

    def sampling(self) -> list[tuple[Sequence, int]]:
        """Return the sequences that sample, each with its number of tokens, in order."""
        pairs = zip(self.sequences, self.num_sampled.tolist(), strict=True)
        return [(sequence, num_sampled) for sequence, num_sampled in pairs if num_sampled]

    def sampling_sequences(self) -> list[Sequence]:
        """Return the sequences that sample, in order."""
        return self.sequences if self.num_sampled.all() else list(compress(self.sequences, self.num_sampled.tolist()))

    def _set(self, sequences: list[Sequence], arrays: tuple[Int64, ...]) -> None:
        """Replace the sequences, and the arrays in the order of `_BY_SEQUENCE`."""
        self.sequences = sequences
        self.rows, self.serials, self.starts, self.counts, self.num_sampled, self.num_cached, self.asks_more = arrays


_BY_SEQUENCE = ("rows", "serials", "starts", "counts", "num_sampled", "num_cached", "asks_more")
"""The arrays of a plan, with an entry for each sequence."""
