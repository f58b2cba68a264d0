"""Log-probabilities of tokens that are already known: of sampled ones, and of a prompt's own.

Tensors of logits in, plain values out; knows no sampling parameters and no queues.
"""

from __future__ import annotations

from collections.abc import Sequence as AnySequence

import torch
from torch import Tensor

from engine.outputs import TokenLogprobs


def token_logprobs(logits: Tensor, token_ids: AnySequence[int], *, counts: AnySequence[int]) -> list[TokenLogprobs]:
    """Return the log-probability of each row's token and its `counts[i]` best ones; `[rows, vocab]` fp32 logits."""
    values = logits.log_softmax(dim=-1)
    most = max(counts)
    best, best_ids = values.topk(most, dim=-1) if most else (values[:, :0], values[:, :0].long())
    own = values.gather(-1, torch.tensor(token_ids, device=values.device)[:, None])
    ranks = (values > own).sum(dim=-1) + 1
    lists = zip(own[:, 0].tolist(), ranks.tolist(), best_ids.tolist(), best.tolist(), counts, strict=True)
    return [
        TokenLogprobs(logprob=logprob, rank=rank, top_token_ids=top_ids[:count], top_logprobs=top[:count])
        for logprob, rank, top_ids, top, count in lists
    ]
