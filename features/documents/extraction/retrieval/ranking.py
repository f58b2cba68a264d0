"""Rankings of rows, best first, and fusion of several rankings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RRF_K = 60


@dataclass(frozen=True, slots=True)
class Hit:
    """A row of an index and its score; scores are comparable only within one ranking."""

    row: int
    score: float


def best(scores: NDArray[np.float32], top_k: int) -> list[Hit]:
    """Return the best rows by `[rows]` scores above -inf; among equals the first rows."""
    count = min(top_k, len(scores))
    if count == 0:
        return []
    least = np.partition(scores, -count)[-count]
    above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
    rows = np.concatenate([above, equal[: count - len(above)]])
    rows = rows[np.lexsort((rows, -scores[rows]))]
    return [Hit(row, score) for row, score in zip(rows.tolist(), scores[rows].tolist(), strict=True) if score > -np.inf]


def fused(rankings: Sequence[Sequence[Hit]], top_k: int, *, k: int = RRF_K) -> list[Hit]:
    """Join rankings by rank alone with reciprocal rank fusion (Cormack, Clarke, Buettcher 2009)."""
    scores: defaultdict[int, float] = defaultdict(float)
    for ranking in rankings:
        for place, hit in enumerate(ranking, 1):
            scores[hit.row] += 1 / (k + place)
    ordered = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return [Hit(row, score) for row, score in ordered[:top_k]]
