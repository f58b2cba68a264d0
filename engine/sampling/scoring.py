"""Log-probabilities of prompts: each row of a prompt tells how likely the prompt's next token was.

Knows plans and logits; no sampling, no cache. The rows of a piece come in parts, so that memory stays bounded.
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
    """What follows each of the rows."""

    def score(self, logits: Tensor) -> None:
        """Append what `[rows, vocab]` logits tell to the sequence's `prompt_logprobs`; parts come in order."""
        found, count = self.sequence.prompt_logprobs, self.sequence.request.params.prompt_logprobs
        assert found is not None
        assert count is not None
        tokens = upload(np.array(self.token_ids, dtype=np.int64), logits.device)
        found += LogprobRows(logits.float(), tokens, [count] * len(self.token_ids)).read()


def prompt_parts(plan: StepPlan, query_start: npt.NDArray[np.int32], *, max_rows: int) -> list[PromptPart]:
    """Return what the step is to score, at most `max_rows` rows a part; `query_start[i]` is sequence i's first row.

    A row that is computed again after a preemption tells nothing new and is passed over.
    """
    parts = []
    for index, sequence in enumerate(plan.sequences):
        if sequence.prompt_logprobs is None:
            continue
        start, known = plan.starts[index], len(sequence.prompt_logprobs)
        if known == sequence.num_prompt_tokens - 1:
            continue  # all are known; what is computed now is output of an earlier run
        assert start <= known, "a row of the prompt was passed over"
        end = min(start + plan.counts[index], sequence.num_prompt_tokens - 1)
        for low in range(known, end, max_rows):
            high = min(low + max_rows, end)
            rows = np.arange(low, high) + (int(query_start[index]) - start)
            parts.append(PromptPart(sequence, rows, sequence.token_ids[low + 1 : high + 1]))
    return parts
