"""Input and output of the scheduler: limits, and one step's plan. Values only; no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.scheduling.request import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCopy:
    """Pairs of a block of the device's cache and a block of host memory."""

    device_blocks: list[int]
    host_blocks: list[int]


@dataclass(slots=True)
class StepPlan:
    """One step's work: sequence i computes tokens `starts[i] : starts[i] + counts[i]`, its drafts last.

    A token is sampled after each of its last `num_sampled[i]` ones: none in the middle of a prompt, otherwise one, and
    one more for each draft.
    """

    sequences: list[Sequence] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    num_sampled: list[int] = field(default_factory=list)
    copies_out: list[BlockCopy] = field(default_factory=list)
    copies_in: list[BlockCopy] = field(default_factory=list)
    grammar_seconds: dict[Sequence, float] = field(default_factory=dict)
    """How long each sequence's grammar delayed the others; measured where the masks are written."""

    def add(self, sequence: Sequence, count: int) -> None:
        """Plan a sequence's next `count` tokens."""
        start = sequence.num_computed_tokens
        self.sequences.append(sequence)
        self.starts.append(start)
        self.counts.append(count)
        self.num_sampled.append(max(0, start + count - sequence.num_tokens + 1))

    def prune(self) -> list[int] | None:
        """Drop what is no longer needed, now that all tokens of the step before are known.

        Dropped are sequences that have ended, and samples of tokens that a grammar has forced meanwhile. Return the
        rows of logits that are still sampled, None for all.
        """
        steps = list(zip(self.sequences, self.starts, self.counts, self.num_sampled, strict=True))
        if all(
            one.is_live and (not sampled or start + count == one.num_tokens) for one, start, count, sampled in steps
        ):
            return None
        rows, row = [], 0
        kept = StepPlan()
        for sequence, start, count, num_sampled in steps:
            if sequence.is_live:
                is_sampled = num_sampled > 0 and start + count == sequence.num_tokens
                kept.sequences.append(sequence)
                kept.starts.append(start)
                kept.counts.append(count)
                kept.num_sampled.append(num_sampled if is_sampled else 0)
                rows += [row] if is_sampled else []
            row += num_sampled
        self.sequences, self.starts, self.counts = kept.sequences, kept.starts, kept.counts
        self.num_sampled = kept.num_sampled
        return rows

    def num_kept(self) -> list[int]:
        """Once the samples are appended, return how many of them each sampling sequence has kept, in order."""
        rows = zip(self.sequences, self.starts, self.counts, self.num_sampled, strict=True)
        return [
            sequence.num_tokens - (start + count + 1 - sampled) for sequence, start, count, sampled in rows if sampled
        ]

    def sampling(self) -> list[tuple[Sequence, int]]:
        """Return the sequences that sample, each with its number of tokens, in order."""
        pairs = zip(self.sequences, self.num_sampled, strict=True)
        return [(sequence, num_sampled) for sequence, num_sampled in pairs if num_sampled]

    def sampling_sequences(self) -> list[Sequence]:
        """Return the sequences that sample, in order."""
        return [sequence for sequence, num_sampled in zip(self.sequences, self.num_sampled, strict=True) if num_sampled]
