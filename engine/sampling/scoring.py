"""Log-probabilities of prompts: each row of a prompt gives the log-probability of its next token.

The rows of a piece are computed in parts, which bounds the memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from engine.device.transfer import upload
from engine.sampling.logprobs import LogprobRows
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Some rows of one sequence's prompt."""

    sequence: Sequence
    rows: npt.NDArray[np.int64]
    """Flat rows of the step."""
    token_ids: list[int]
    """The token that follows each row."""

    def score(self, logits: Tensor) -> None:
        """Append log-probabilities of `[rows, vocab]` logits to the sequence's `prompt_logprobs`, part by part."""
        scores, count = self.sequence.prompt_logprobs, self.sequence.request.params.prompt_logprobs
        assert scores is not None
        assert count is not None
        tokens = upload(np.array(self.token_ids, dtype=np.int64), logits.device)
        scores += LogprobRows(logits.float(), tokens, [count] * len(self.token_ids)).read()


def prompt_parts(plan: StepPlan, query_start: npt.NDArray[np.int32], *, max_rows: int) -> list[PromptPart]:
    """Return the parts to score, of at most `max_rows` rows; `query_start[i]` is sequence i's first row.

    A row that is recomputed after a preemption is skipped: its result is known.
    """
    parts = []
    for index in np.flatnonzero(plan.asks_more).tolist():
        sequence = plan.sequences[index]
        if sequence.prompt_logprobs is None:
            continue
        start, known = int(plan.starts[index]), len(sequence.prompt_logprobs)
        if known == sequence.num_prompt_tokens - 1:
            continue  # all are known; the rows are output of an earlier run
        assert start <= known, "a row of the prompt was skipped"
        end = min(start + int(plan.counts[index]), sequence.num_prompt_tokens - 1)
        for low in range(known, end, max_rows):
            high = min(low + max_rows, end)
            rows = np.arange(low, high) + (int(query_start[index]) - start)
            parts.append(PromptPart(sequence, rows, sequence.token_ids[low + 1 : high + 1]))
    return parts
