"""Make one vector of each text's hidden rows: pool, cut, normalize. Knows no model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.pooling.recipe import Pooling


def pool(rows: Tensor, lengths: Sequence[int], pooling: Pooling) -> Tensor:
    """Return [texts, hidden] of packed rows [tokens, hidden]; every text has at least one row."""
    ends = torch.tensor(lengths).cumsum(0)
    match pooling:
        case Pooling.CLS:
            return rows[ends - torch.tensor(lengths)]
        case Pooling.LAST_TOKEN:
            return rows[ends - 1]
        case Pooling.MEAN:
            return torch.stack([own.mean(0) for own in torch.split(rows, list(lengths))])


def finish(vectors: Tensor, *, dimensions: int | None, is_normalized: bool) -> Tensor:
    """Keep the first `dimensions` numbers of each vector, and give it length 1 again."""
    kept = vectors if dimensions is None else vectors[:, :dimensions]
    return F.normalize(kept, dim=-1) if is_normalized else kept
