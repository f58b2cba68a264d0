"""Turn each text's hidden rows into one vector: pool, cut, normalize."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.errors import BrokenRowError
from engine.pooling.recipe import Pooling


def pool(rows: Tensor, lengths: Sequence[int], pooling: Pooling) -> Tensor:
    """Return fp32 [texts, hidden] of packed rows [tokens, hidden]; every text has at least one row."""
    ends = torch.tensor(lengths).cumsum(0)
    match pooling:
        case Pooling.CLS:
            return rows[ends - torch.tensor(lengths)].float()
        case Pooling.LAST_TOKEN:
            return rows[ends - 1].float()
        case Pooling.MEAN:
            return torch.stack([own.mean(0) for own in torch.split(rows.float(), list(lengths))])


def finish(vectors: Tensor, *, dimensions: int | None, is_normalized: bool) -> Tensor:
    """Keep the first `dimensions` numbers of each vector, and normalize it to length 1 again."""
    kept = vectors if dimensions is None else vectors[:, :dimensions]
    return F.normalize(kept, dim=-1) if is_normalized else kept


def are_numbers(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Tell for each row, a vector or a score, whether it has neither NaN nor an infinity."""
    return np.asarray(np.isfinite(rows).all(axis=tuple(range(1, rows.ndim))))


def require_numbers(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the rows. Raises BrokenRowError, with the index of the first that has NaN or an infinity."""
    is_number = are_numbers(rows)
    if not is_number.all():
        raise BrokenRowError(
            f"The model's result for text {int(is_number.argmin())} is NaN or infinite: its weights or this machine "
            "are broken. Load the model again, or fetch it again from its source."
        )
    return rows
