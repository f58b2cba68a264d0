"""Log-probabilities of known tokens: of sampled ones, and of a prompt's own.

Tensors of logits in, plain values out.
"""

from __future__ import annotations

from collections.abc import Sequence as AnySequence

from torch import Tensor

from engine.device.transfer import Download
from engine.outputs import TokenLogprobs


class LogprobRows:
    """Log-probabilities of each row's token and of its `counts[i]` best ones, being copied from the device."""

    def __init__(self, logits: Tensor, tokens: Tensor, counts: AnySequence[int]) -> None:
        """Compute them from `[rows, vocab]` fp32 logits for `tokens` `[rows]` int64 on the same device."""
        values = logits.log_softmax(dim=-1)
        most = max(counts)
        best, best_ids = values.topk(most, dim=-1) if most else (values[:, :0], values[:, :0].long())
        own = values.gather(-1, tokens[:, None])
        ranks = (values > own).sum(dim=-1) + 1
        self._counts = counts
        self._download = Download(own[:, 0], ranks, best_ids, best)

    def read(self) -> list[TokenLogprobs]:
        """Wait for them and return one entry per row."""
        lists = zip(*(values.tolist() for values in self._download.read()), self._counts, strict=True)
        return [
            TokenLogprobs(logprob=logprob, rank=rank, top_token_ids=top_ids[:count], top_logprobs=top[:count])
            for logprob, rank, top_ids, top, count in lists
        ]
