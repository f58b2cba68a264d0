"""Immutable inverted file: which terms occur in which texts, and how often.

`merged` joins smaller ones into a larger one; texts keep the order in which they came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.documents.extraction.retrieval.columns import Column

_BETWEEN_TERMS = "\n"  # no term has one

Ints = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Postings:
    """Sorted terms; the texts with term t, and its counts in them, are at [starts[t], starts[t + 1])."""

    terms: tuple[str, ...]
    starts: Ints  # [terms + 1] int64
    texts: Ints  # [postings] int32, ascending within a term
    counts: Ints  # [postings] int32
    lengths: Ints  # [texts] int32: number of terms

    @classmethod
    def of(cls, texts: Iterable[Sequence[str]]) -> Postings:
        """Build an inverted file from the terms of texts."""
        numbers: dict[str, int] = {}
        entries: list[tuple[int, int, int]] = []
        lengths: list[int] = []
        for text, terms in enumerate(texts):
            lengths.append(len(terms))
            entries += ((numbers.setdefault(term, len(numbers)), text, count) for term, count in Counter(terms).items())
        rows = np.fromiter(chain.from_iterable(entries), np.int64, 3 * len(entries)).reshape(-1, 3)
        ordered = sorted(numbers)
        place = np.empty(len(ordered), np.int64)  # position of each number among the sorted terms
        place[[numbers[term] for term in ordered]] = np.arange(len(ordered))
        return _sorted(ordered, place[rows[:, 0]], rows[:, 1], rows[:, 2], lengths=np.array(lengths, np.int32))

    @classmethod
    def merged(cls, parts: Sequence[Postings]) -> Postings:
        """Join inverted files; the texts of each follow those of the previous one."""
        ordered = sorted(set(chain.from_iterable(part.terms for part in parts)))
        numbers = {term: number for number, term in enumerate(ordered)}
        terms, texts, before = [], [], 0
        for part in parts:
            own = np.fromiter((numbers[term] for term in part.terms), np.int64, len(part.terms))
            terms.append(np.repeat(own, np.diff(part.starts)))
            texts.append(part.texts.astype(np.int64) + before)
            before += part.num_texts
        counts = _joined([part.counts for part in parts])
        return _sorted(
            ordered, _joined(terms), _joined(texts), counts, lengths=_joined([part.lengths for part in parts])
        )

    @property
    def num_texts(self) -> int:
        """Return the number of texts, including those without terms."""
        return len(self.lengths)

    def columns(self) -> dict[str, Column]:
        """Return columns for `from_columns`."""
        words = np.frombuffer(_BETWEEN_TERMS.join(self.terms).encode(), np.uint8)
        arrays = {"starts": self.starts, "texts": self.texts, "counts": self.counts, "lengths": self.lengths}
        return {"terms": words, **arrays}

    @classmethod
    def from_columns(cls, columns: dict[str, Column]) -> Postings:
        """Read the output of `columns`."""
        words = columns["terms"].tobytes().decode()
        arrays = {name: columns[name] for name in ("starts", "texts", "counts", "lengths")}
        return cls(terms=tuple(words.split(_BETWEEN_TERMS)) if words else (), **arrays)


def _joined(arrays: Sequence[Ints]) -> Ints:
    return np.concatenate(arrays) if arrays else np.empty(0, np.int32)


def _sorted(terms: Sequence[str], of_term: Ints, texts: Ints, counts: Ints, *, lengths: Ints) -> Postings:
    """Return an inverted file from entries in the order of their texts."""
    order = np.argsort(of_term, kind="stable")
    starts = np.searchsorted(of_term[order], np.arange(len(terms) + 1))
    return Postings(
        terms=tuple(terms),
        starts=starts.astype(np.int64),
        texts=texts[order].astype(np.int32),
        counts=counts[order].astype(np.int32),
        lengths=lengths.astype(np.int32),
    )
