"""Exact scores of rows by their vectors: one matrix product for all questions of a batch.

On 30,000 rows of 384 numbers this is faster than any approximate index.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from features.documents.extraction.errors import RetrievalError
from features.documents.extraction.retrieval.ranking import Hit, best

Vectors = NDArray[np.float16]

_ROWS_AT_ONCE = 16_384
"""Rows converted to fp32 at a time: 25 MB with 384 numbers each."""


def nearest(parts: Sequence[Vectors], questions: NDArray[np.float32], top_k: int) -> list[list[Hit]]:
    """Return for each of `[questions, dimensions]` the best rows of all `[rows, dimensions]`, by inner product.

    A row of NaN has no vector, and is never returned.
    """
    rankings: list[list[Hit]] = [[] for _ in questions]
    first = 0
    for part in parts:
        if part.shape[1] != questions.shape[1]:
            raise RetrievalError(
                f"a question has {questions.shape[1]} dimensions, the vectors of the index have {part.shape[1]}."
            )
        for start in range(0, len(part), _ROWS_AT_ONCE):
            rows = part[start : start + _ROWS_AT_ONCE].astype(np.float32)
            products = np.nan_to_num(questions.astype(np.float32) @ rows.T, copy=False, nan=-np.inf)
            for number, scores in enumerate(products):
                hits = [Hit(hit.row + first + start, hit.score) for hit in best(scores, top_k)]
                rankings[number] = sorted([*rankings[number], *hits], key=lambda hit: (-hit.score, hit.row))[:top_k]
        first += len(part)
    return rankings
