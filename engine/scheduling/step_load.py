"""Size of a step, as sums over its sequences, from which its time and memory traffic follow. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from engine.scheduling.plan import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """The size of a step, as sums over its sequences."""

    num_tokens: int
    num_seqs: int
    num_context_tokens: int
    """Cached and new tokens that attention reads."""
    num_shared_tokens: int
    """Context tokens found in the prefix cache, which other sequences of the step are likely to read, too."""
    num_attended: int
    """Pairs of a new token and itself or an earlier token."""
    num_logit_rows: int
    """Rows that the output matrix is applied to."""


def load_of(plan: StepPlan) -> StepLoad:
    """Return the size of a step."""
    starts, counts = plan.starts, plan.counts
    num_tokens = int(counts.sum())
    num_context_tokens = int(starts.sum()) + num_tokens
    # A single token attends to its whole context, which is counted above; the others of a piece come on top.
    num_more = int(((counts - 1) * starts + counts * (counts - 1) // 2).sum())
    return StepLoad(
        num_tokens=num_tokens,
        num_seqs=len(counts),
        num_context_tokens=num_context_tokens,
        num_shared_tokens=int(plan.num_cached.sum()),
        num_attended=num_context_tokens + num_more,
        num_logit_rows=int(plan.num_sampled.sum()),
    )
