"""The engine's interface to a source of drafts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from engine.config import EngineConfig, Speculation
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence
from engine.speculation.lookup_drafter import LookupDrafter
from engine.stats import SpeculationCounters


class Drafter(Protocol):
    """Draft before a step, and learn from its outcome. Drafts never change which tokens are sampled."""

    counters: SpeculationCounters

    def propose(self, sequences: Iterable[Sequence], room: int) -> None:
        """Add drafts to running sequences without any, up to `room` in total; the step follows at once."""

    def learn(self, plan: StepPlan, num_kept: list[int]) -> None:
        """Learn from a computed step: `num_kept[i]` tokens were kept by the i-th sequence that sampled."""


def make_drafter(config: EngineConfig) -> Drafter | None:
    """Return the configured drafter; None if speculation is off."""
    if config.speculation is Speculation.OFF:
        return None
    return LookupDrafter(
        max_drafts=config.num_speculative_tokens,
        min_match=config.prompt_lookup_min,
        max_match=config.prompt_lookup_max,
    )
