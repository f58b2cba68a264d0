"""Size of a step, as sums over its sequences, from which its time and memory traffic follow. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

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


_num_cached_tokens = attrgetter("num_cached_tokens")


def load_of(plan: StepPlan) -> StepLoad:
    """Return the size of a step."""
    num_tokens = sum(plan.counts)
    num_context_tokens = sum(plan.starts) + num_tokens
    num_attended = num_context_tokens
    if num_tokens > len(plan.counts):
        pairs = zip(plan.starts, plan.counts, strict=True)
        # A single token attends to its whole context, which is counted above; the others of a piece come on top.
        num_attended += sum((count - 1) * start + count * (count - 1) // 2 for start, count in pairs if count > 1)
    return StepLoad(
        num_tokens=num_tokens,
        num_seqs=len(plan.counts),
        num_context_tokens=num_context_tokens,
        num_shared_tokens=sum(map(_num_cached_tokens, plan.sequences)),
        num_attended=num_attended,
        num_logit_rows=sum(plan.num_sampled),
    )
