"""What the scheduler is given, hands out and counts: limits, one step's plan, counters. Values only; no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.request import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """How much a step and a batch may hold."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


@dataclass(slots=True)
class StepPlan:
    """One step's work: sequence i computes tokens `starts[i] : starts[i] + counts[i]` and samples if `samples[i]`.

    `padding` are finished sequences of a static batch, which compute one token that nobody reads.
    """

    sequences: list[Sequence] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    samples: list[bool] = field(default_factory=list)
    padding: list[Sequence] = field(default_factory=list)

    def add(self, sequence: Sequence, count: int) -> None:
        """Give a sequence its next `count` tokens."""
        start = sequence.num_computed_tokens
        self.sequences.append(sequence)
        self.starts.append(start)
        self.counts.append(count)
        self.samples.append(start + count == sequence.num_tokens)


@dataclass(slots=True)
class SchedulerCounters:
    """What happened since the start."""

    num_steps: int = 0
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_seqs: int = 0
    num_used_blocks: int = 0
    num_slots: int = 0
    num_written_slots: int = 0
