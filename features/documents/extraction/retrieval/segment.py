"""An immutable part of an index: passages of some documents with their words and, optionally, vectors.

Texts are stored elsewhere; a passage is a place in a document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from features.documents.extraction.errors import RetrievalError
from features.documents.extraction.passages.passage import Passage
from features.documents.extraction.retrieval.columns import pack, unpack
from features.documents.extraction.retrieval.postings import Postings
from features.documents.extraction.retrieval.signature import Signature
from features.documents.extraction.retrieval.terms import Analyzer
from features.documents.extraction.retrieval.vectors import Vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a passage."""

    document: str
    start: int
    end: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """Passages as rows, in the order of their documents."""

    signature: Signature
    documents: tuple[str, ...]
    places: NDArray[np.int32]  # [rows, 4]: number of the document, start, end, tokens
    postings: Postings
    vectors: Vectors | None = None  # [rows, dimensions]

    @classmethod
    def merged(cls, parts: Sequence[Segment]) -> Segment:
        """Join one or more segments. Raises RetrievalError unless they were made alike."""
        first = parts[0]
        for other in parts[1:]:
            first.signature.require(other.signature)
        before = np.cumsum([0, *(len(part.documents) for part in parts)])
        shifted = [part.places + np.array([count, 0, 0, 0]) for part, count in zip(parts, before, strict=False)]
        vectors = [part.vectors for part in parts if part.vectors is not None]
        return cls(
            signature=first.signature,
            documents=tuple(document for part in parts for document in part.documents),
            places=np.concatenate(shifted).astype(np.int32),
            postings=Postings.merged([part.postings for part in parts]),
            vectors=np.concatenate(vectors) if vectors else None,
        )

    @property
    def num_rows(self) -> int:
        return len(self.places)

    def place(self, row: int) -> Place:
        """Return the place of a row's passage."""
        document, start, end, num_tokens = self.places[row].tolist()
        return Place(document=self.documents[document], start=start, end=end, num_tokens=num_tokens)

    def to_bytes(self) -> bytes:
        """Return bytes for `from_bytes`."""
        words = {"signature": self.signature.to_json(), "documents": self.documents}
        vectors = {} if self.vectors is None else {"vectors": self.vectors}
        return pack(words, {"places": self.places, **self.postings.columns(), **vectors})

    @classmethod
    def from_bytes(cls, stored: bytes) -> Segment:
        """Read the output of `to_bytes`. Raises RetrievalError for anything else."""
        words, columns = unpack(stored)
        return cls(
            signature=Signature.from_json(words["signature"]),
            documents=tuple(words["documents"]),
            places=columns["places"],
            postings=Postings.from_columns(columns),
            vectors=columns.get("vectors"),
        )


def build(
    documents: Iterable[tuple[str, str, Sequence[Passage]]],
    signature: Signature,
    *,
    vectors: NDArray[np.float32] | None = None,
) -> Segment:
    """Build a segment from documents, each with name, text and passages, and a vector for each passage.

    Raises RetrievalError if number or size of the vectors differ from the signature.
    """
    analyzer = Analyzer(signature.language)
    names: list[str] = []
    places: list[tuple[int, int, int, int]] = []
    terms: list[list[str]] = []
    for name, text, passages in documents:
        places += ((len(names), one.start, one.end, one.num_tokens) for one in passages)
        terms += (analyzer.terms(one.shown(text)) for one in passages)
        names.append(name)
    _require_vectors(vectors, signature, num_rows=len(places))
    return Segment(
        signature=signature,
        documents=tuple(names),
        places=np.array(places, np.int32).reshape(-1, 4),
        postings=Postings.of(terms),
        vectors=None if vectors is None else vectors.astype(np.float16),
    )


def _require_vectors(vectors: NDArray[np.float32] | None, signature: Signature, *, num_rows: int) -> None:
    expected = None if signature.embedding is None else (num_rows, signature.embedding.dimensions)
    actual = None if vectors is None else vectors.shape
    if actual != expected:
        raise RetrievalError(f"vectors have shape {actual}; the passages need {expected}.")
