"""Searches indexes: passages by words, or by words and vectors, as many as fit a prompt.

The caller supplies the vectors of questions. Searching waits for the object store and computes: call it in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from features.documents.extraction.errors import RetrievalError
from features.documents.extraction.retrieval.archive import PassageText
from features.documents.extraction.retrieval.choosing import Choice, LeftOut, Ranked, choose
from features.documents.extraction.retrieval.ranking import Hit
from features.retrieval.loading import LoadedIndex, LoadedIndexes
from features.retrieval.parts import IndexParts
from jobs.errors import InputError, NotFoundError
from jobs.storage import Storage

_LOOKED_AT = 2
"""Ranks considered per requested passage: a shorter one may fit where a better one does not."""
_NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Query:
    """A question without prefix, with its vector; without one it is searched by words only."""

    text: str
    vector: NDArray[np.float32] | None = None  # [dimensions]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPassage:
    """A passage that was chosen."""

    rank: int
    """From 0."""
    score: float
    """By BM25, or of fused ranks: comparable only within one question."""
    document_id: str
    document: str
    """Its name."""
    start: int
    """Offset into the document's text, like `end`."""
    end: int
    headings: tuple[str, ...]
    num_tokens: int
    """Including its headings, as the index counts."""
    text: str

    @property
    def shown(self) -> str:
        """Return the text for a prompt, preceded by a line with its headings."""
        return PassageText(headings=self.headings, text=self.text).shown


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedPassage:
    """A passage that was found but left out."""

    rank: int
    score: float
    document_id: str
    document: str
    start: int
    end: int
    num_tokens: int
    reason: LeftOut


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result for a question."""

    chosen: tuple[FoundPassage, ...] = ()
    """Documents by their best passage, the passages of each in text order."""
    dropped: tuple[DroppedPassage, ...] = ()
    """By rank."""
    num_tokens: int = 0
    """Of all chosen passages."""


class Searcher:
    """Searches the indexes of one object store; one per process. Thread-safe."""

    def __init__(self, storage: Storage, *, max_bytes: int) -> None:
        """`max_bytes` is the approximate memory for indexes kept between searches."""
        self._storage = storage
        self._indexes = LoadedIndexes(storage, max_bytes=max_bytes)

    def search(self, parts: IndexParts, queries: Sequence[Query], *, top_k: int, max_tokens: int | None) -> list[Found]:
        """Return the results for each question: at most `top_k` passages, of `max_tokens` together (None: no limit).

        Either all questions have vectors or none. Raises InputError (index_mismatch) if a vector does not match the
        index, NotFoundError (index_gone) if it is deleted, ServiceError.
        """
        loaded = self._indexes.get(parts)
        if loaded is None or not queries:
            return [Found() for _ in queries]
        rankings = _ranked(loaded, queries, _LOOKED_AT * top_k)
        limit = _NO_LIMIT if max_tokens is None else max_tokens
        choices = [
            choose([(hit, loaded.index.place(hit.row)) for hit in ranking], max_tokens=limit, top_k=top_k)
            for ranking in rankings
        ]
        texts = self._texts(loaded, {one.hit.row for choice in choices for one in choice.chosen}, parts.id)
        return [_found(loaded, choice, texts) for choice in choices]

    @property
    def size_bytes(self) -> int:
        """Return the approximate memory of the kept indexes."""
        return self._indexes.size_bytes

    def _texts(self, loaded: LoadedIndex, rows: set[int], index_id: str) -> dict[int, PassageText]:
        """Read the texts of rows, with one read per segment."""
        of_segments: dict[int, list[tuple[int, tuple[int, int]]]] = {}
        for row in sorted(rows):
            number, own = loaded.index.locate(row)
            of_segments.setdefault(number, []).append((row, loaded.archives[number].record_range(own)))
        texts: dict[int, PassageText] = {}
        for number, places in of_segments.items():
            try:
                records = self._storage.read_ranges(loaded.object_keys[number], [place for _, place in places])
            except NotFoundError:
                raise NotFoundError(
                    f"No index found with id {index_id!r}: it was deleted.", code="index_gone"
                ) from None
            texts |= {row: PassageText.from_bytes(record) for (row, _), record in zip(places, records, strict=True)}
        return texts


def _ranked(loaded: LoadedIndex, queries: Sequence[Query], depth: int) -> list[list[Hit]]:
    vectors = [query.vector for query in queries if query.vector is not None]
    if not vectors:
        return [loaded.index.by_words(query.text, depth) for query in queries]
    assert len(vectors) == len(queries), "all questions have vectors, or none has"
    try:
        return loaded.index.by_both([query.text for query in queries], np.stack(vectors), depth)
    except (RetrievalError, ValueError) as error:  # no vectors, or vectors of another size or of different sizes
        raise InputError(f"the index cannot be searched by this vector: {error}", code="index_mismatch") from None


def _found(loaded: LoadedIndex, choice: Choice, texts: dict[int, PassageText]) -> Found:
    return Found(
        chosen=tuple(_chosen(loaded, one, texts[one.hit.row]) for one in choice.chosen),
        dropped=tuple(_dropped(loaded, one) for one in choice.dropped),
        num_tokens=choice.num_tokens,
    )


def _chosen(loaded: LoadedIndex, one: Ranked, text: PassageText) -> FoundPassage:
    return FoundPassage(
        rank=one.rank,
        score=one.hit.score,
        document_id=one.place.document,
        document=_name(loaded, one),
        start=one.place.start,
        end=one.place.end,
        headings=text.headings,
        num_tokens=one.place.num_tokens,
        text=text.text,
    )


def _dropped(loaded: LoadedIndex, one: Ranked) -> DroppedPassage:
    assert one.left_out is not None, "it was left out"
    return DroppedPassage(
        rank=one.rank,
        score=one.hit.score,
        document_id=one.place.document,
        document=_name(loaded, one),
        start=one.place.start,
        end=one.place.end,
        num_tokens=one.place.num_tokens,
        reason=one.left_out,
    )


def _name(loaded: LoadedIndex, one: Ranked) -> str:
    number, own = loaded.index.locate(one.hit.row)
    archive = loaded.archives[number]
    return archive.names[int(archive.segment.places[own, 0])]
