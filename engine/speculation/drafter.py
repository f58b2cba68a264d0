"""What the engine asks of whoever guesses the coming tokens of a sequence; where they come from, others know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from engine.config import EngineConfig, Speculation
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence
from engine.speculation.lookup_drafter import LookupDrafter
from engine.stats import SpeculationCounters


class Drafter(Protocol):
    """Guess before a step, and learn from it what became of the guesses. No token depends on what it guesses."""

    counters: SpeculationCounters

    def propose(self, sequences: Iterable[Sequence], room: int) -> None:
        """Give running sequences without drafts some, so that all have up to `room` in sum; the step is next."""

    def learn(self, plan: StepPlan, num_kept: list[int]) -> None:
        """Take in a step that was run: `num_kept[i]` tokens were taken by the i-th sequence that sampled."""


def make_drafter(config: EngineConfig) -> Drafter | None:
    """Make what the configuration asks for; None where nothing is guessed."""
    if config.speculation is Speculation.OFF:
        return None
    return LookupDrafter(
        max_drafts=config.num_speculative_tokens,
        min_match=config.prompt_lookup_min,
        max_match=config.prompt_lookup_max,
    )
