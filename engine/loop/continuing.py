"""Divide a step into stretches of sequences that only go on with their new token, and the sequences between them.

In most steps all but a few go on, and one comparison finds them. numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence

_Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Sampling sequences that follow each other in a step."""

    going_on: list[tuple[Sequence, int]]
    """With the token: it does not end the sequence, and nothing but its tokens changes."""
    other: tuple[Sequence, range] | None
    """The sequence behind them, with its sampled rows: they may end it, be drafts, follow a grammar, have
    log-probabilities. None at the end of the step.
    """


@dataclass(frozen=True, slots=True)
class _Limits:
    """What may end each of some sequences."""

    sequences: list[Sequence]
    max_total_tokens: _Int64
    """0 if more than tokens are recorded for the sequence, so that it never goes on."""
    stop_token_ids: _Int64
    """Of any of them: one that meets another's stop token, or its own before `min_tokens`, is among the others."""


class ContinuingSequences:
    """Find them in steps; what may end sequences is gathered once while they stay the same."""

    def __init__(self) -> None:
        self._limits = _limits_of([])

    def divide(self, plan: StepPlan, tokens: list[int]) -> list[Stretch]:
        """Divide the plan's sampling sequences, in order, by `tokens`, one per sampled row."""
        sequences = plan.sampling_sequences()
        if sequences != self._limits.sequences:
            self._limits = _limits_of(sequences)
        num_sampled = np.array(plan.num_sampled, dtype=np.int64)
        num_tokens = np.array(plan.starts, dtype=np.int64) + np.array(plan.counts, dtype=np.int64) + 1
        if len(sequences) < len(num_sampled):
            num_tokens, num_sampled = num_tokens[num_sampled > 0], num_sampled[num_sampled > 0]
        end_rows = np.cumsum(num_sampled)
        first_rows = end_rows - num_sampled
        drawn = np.array(tokens, dtype=np.int64)[first_rows]
        is_stop = np.isin(drawn, self._limits.stop_token_ids)
        goes_on = (num_sampled == 1) & (drawn >= 0) & ~is_stop & (num_tokens < self._limits.max_total_tokens)
        pairs = list(zip(sequences, drawn.tolist(), strict=True))
        stretches, first = [], 0
        for index in np.flatnonzero(~goes_on).tolist():
            rows = range(int(first_rows[index]), int(end_rows[index]))
            stretches.append(Stretch(pairs[first:index], (sequences[index], rows)))
            first = index + 1
        return [*stretches, Stretch(pairs[first:], None)]


def _limits_of(sequences: list[Sequence]) -> _Limits:
    stop_token_ids = frozenset[int]().union(*{sequence.stop_token_ids for sequence in sequences})
    limits = [sequence.max_total_tokens if _has_only_tokens(sequence) else 0 for sequence in sequences]
    return _Limits(sequences, np.array(limits, dtype=np.int64), np.array(sorted(stop_token_ids), dtype=np.int64))


def _has_only_tokens(sequence: Sequence) -> bool:
    has_logprobs = sequence.request.params.logprobs is not None or sequence.prompt_logprobs is not None
    return sequence.matcher is None and not has_logprobs
