"""Search of segments as one index: by words, by vectors, or by both with fused ranks.

Adding or removing a segment means creating another index.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from features.documents.extraction.errors import RetrievalError
from features.documents.extraction.retrieval.bm25 import Bm25
from features.documents.extraction.retrieval.ranking import Hit, fused
from features.documents.extraction.retrieval.segment import Place, Segment
from features.documents.extraction.retrieval.terms import Analyzer
from features.documents.extraction.retrieval.vectors import nearest

DEPTH = 100
"""Minimum length of the rankings to fuse; longer if more results are requested."""


class Index:
    """Searches segments. Raises RetrievalError unless they were made alike."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        if not segments:
            raise RetrievalError("an index has at least one segment.")
        for segment in segments[1:]:
            segments[0].signature.require(segment.signature)
        self.signature = segments[0].signature
        self._segments = segments
        self._starts = list(accumulate((segment.num_rows for segment in segments), initial=0))
        self._words = Bm25([segment.postings for segment in segments])
        self._analyzer = Analyzer(self.signature.language)

    def locate(self, row: int) -> tuple[int, int]:
        """Return the segment number of a row, and its row in the segment."""
        number = bisect_right(self._starts, row) - 1
        return number, row - self._starts[number]

    def place(self, row: int) -> Place:
        """Return the place of a row's passage."""
        number, own = self.locate(row)
        return self._segments[number].place(own)

    def by_words(self, question: str, top_k: int) -> list[Hit]:
        """Rank passages by BM25."""
        return self._words.search(self._analyzer.terms(question), top_k)

    def by_vectors(self, vectors: NDArray[np.float32], top_k: int) -> list[list[Hit]]:
        """Rank passages for each of `[questions, dimensions]`. Raises RetrievalError if passages have no vectors."""
        vector_parts = [segment.vectors for segment in self._segments if segment.vectors is not None]
        if len(vector_parts) < len(self._segments):
            raise RetrievalError("this index has no vectors; search it by words, or build it with an embedding model.")
        return nearest(vector_parts, vectors, top_k)

    def by_both(self, questions: Sequence[str], vectors: NDArray[np.float32], top_k: int) -> list[list[Hit]]:
        """Rank passages for each question by fusing both rankings."""
        depth = max(top_k, DEPTH)
        near = self.by_vectors(vectors, depth)
        words = (self.by_words(question, depth) for question in questions)
        return [fused(both, top_k) for both in zip(words, near, strict=True)]
