"""BM25 scores of texts for the words of a question, over inverted files that are searched as one.

Rows are the texts of the first file, then those of the second, and so on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from features.documents.extraction.retrieval.postings import Postings
from features.documents.extraction.retrieval.ranking import Hit, best

K1, B = 1.2, 0.75
"""The values of Lucene and of most publications."""


class Bm25:
    """BM25 search; statistics over all files are computed once."""

    def __init__(self, parts: Sequence[Postings], *, k1: float = K1, b: float = B) -> None:
        self._numbers = [{term: number for number, term in enumerate(part.terms)} for part in parts]
        self._parts = parts
        self._starts = np.cumsum([0, *(part.num_texts for part in parts)]).tolist()
        self._k1 = k1
        lengths = np.concatenate([part.lengths for part in parts]) if parts else np.empty(0, np.int32)
        mean = float(lengths.mean()) if lengths.sum() else 1.0
        self._norms = (k1 * (1 - b + b * lengths / mean)).astype(np.float32)

    @property
    def num_rows(self) -> int:
        return len(self._norms)

    def search(self, terms: Sequence[str], top_k: int) -> list[Hit]:
        """Return the best rows with one of the terms; among equals the first."""
        scores = self.scores(terms)
        return best(np.where(scores > 0, scores, -np.inf).astype(np.float32), top_k)

    def scores(self, terms: Sequence[str]) -> NDArray[np.float32]:
        """Return the scores `[rows]`; a repeated term counts repeatedly."""
        scores = np.zeros(self.num_rows, np.float32)
        for term, weight in Counter(terms).items():
            rows, counts = self._occurrences(term)
            if len(rows):
                idf = np.log1p((self.num_rows - len(rows) + 0.5) / (len(rows) + 0.5))
                scores[rows] += weight * idf * counts * (self._k1 + 1) / (counts + self._norms[rows])
        return scores

    def _occurrences(self, term: str) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the rows that have a term, and the number of its occurrences in each."""
        rows, counts = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
        for part, numbers, first in zip(self._parts, self._numbers, self._starts, strict=False):
            number = numbers.get(term)
            if number is not None:
                own = slice(int(part.starts[number]), int(part.starts[number + 1]))
                rows.append(part.texts[own].astype(np.int64) + first)
                counts.append(part.counts[own].astype(np.float32))
        return np.concatenate(rows), np.concatenate(counts)
