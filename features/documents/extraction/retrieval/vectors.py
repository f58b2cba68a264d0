"""Score rows by their vectors, exactly: one matrix product for all questions of a batch.

On 30,000 rows of 384 numbers that is faster than any index that leaves rows out. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from features.documents.extraction.errors import RetrievalError
from features.documents.extraction.retrieval.ranking import Hit, best

Vectors = NDArray[np.float16]

_ROWS_AT_ONCE = 16_384
"""Of which fp32 is made for the product: 25 MB of 384 numbers."""


def nearest(parts: Sequence[Vectors], questions: NDArray[np.float32], top_k: int) -> list[list[Hit]]:
    """Return for each of [questions, dimensions] the best rows of all [rows, dimensions], by inner product.

    A row of NaN has no vector, and is not found.
    """
    found: list[list[Hit]] = [[] for _ in questions]
    first = 0
    for part in parts:
        if part.shape[1] != questions.shape[1]:
            raise RetrievalError(
                f"a question has {questions.shape[1]} numbers, the index has {part.shape[1]} a vector."
            )
        for start in range(0, len(part), _ROWS_AT_ONCE):
            rows = part[start : start + _ROWS_AT_ONCE].astype(np.float32)
            products = np.nan_to_num(questions.astype(np.float32) @ rows.T, copy=False, nan=-np.inf)
            for number, scores in enumerate(products):
                hits = [Hit(hit.row + first + start, hit.score) for hit in best(scores, top_k)]
                found[number] = sorted([*found[number], *hits], key=lambda hit: (-hit.score, hit.row))[:top_k]
        first += len(part)
    return found
