"""The part of a document that a prompt shows: all of it or, if too long, the passages relevant for its fields.

The caller supplies the function that counts tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.layout import LayoutText, layout
from features.documents.extraction.fields.groups import Group
from features.documents.extraction.fields.paths import ITEM, Path
from features.documents.extraction.grounding.spans import Span
from features.documents.extraction.passages.cutting import LEAST_TOKENS, Count, Cutter
from features.documents.extraction.passages.passage import Passage, joined_spans
from features.documents.extraction.retrieval.bm25 import Bm25
from features.documents.extraction.retrieval.languages import language_of
from features.documents.extraction.retrieval.postings import Postings
from features.documents.extraction.retrieval.terms import Analyzer

EXCERPT_RULES = (1, 2, 3)
"""Versions of the rule for choosing passages. A job keeps its version, so that grounding sees the text of the prompt.
Version 1 does not score neighbours (`_BESIDE`), 1 and 2 take each document for English."""

_PASSAGE_TOKENS = (256, 128, 64, 32, LEAST_TOKENS)
"""Few sizes, so that groups with slightly different room share cut passages."""
_PASSAGES_PER_EXCERPT = 4
"""Minimum: a passage takes at most a quarter of the room, so that a wrongly chosen one leaves room for others."""
LEAST_ROOM = LEAST_TOKENS * _PASSAGES_PER_EXCERPT
_BESIDE = (0.5, 0.25)
"""Shares of a passage's score added to its neighbours, and to theirs: a value is near the words that name it, often
outside their passage."""
_MAX_MISSES = 4
"""Stop after this many passages that do not fit: little room is left."""
_BYTES_PER_TOKEN = 2
_BETWEEN = "\n\n"
_LANGUAGE = "english"
"""Of documents whose language is unknown: words of other languages stay mostly unchanged, in query and text alike."""
_CAPITAL_IN_NAME = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The context of a model."""

    max_tokens: int
    """For prompt and answer together."""
    count: Count
    excerpt_rule: int = EXCERPT_RULES[-1]


def likely_tokens(text: str) -> int:
    """Estimate tokens if the model's tokenizer is not available: two bytes per token, more than most texts have."""
    return math.ceil(len(text.encode()) / _BYTES_PER_TOKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """The part of a document that a prompt shows."""

    layout: LayoutText
    ranks: Mapping[int, int] = field(default_factory=dict)
    """Ranks of passages by their start in the document's text; empty if the whole document is shown."""
    headings: str = ""
    """Headings shown before passages that are not part of the document's text."""


class Showing:
    """One document, laid out once, and cut once if a prompt has no room for it."""

    def __init__(
        self,
        document: Document,
        count: Count | None = None,
        *,
        excerpt_rule: int = EXCERPT_RULES[-1],
        excerpts: dict[int, Excerpt] | None = None,
    ) -> None:
        """`excerpts` are given for every group if something else has chosen them."""
        self.document = document
        self._count = count
        self._excerpt_rule = excerpt_rule
        self._cuts: dict[int, tuple[list[Passage], Bm25]] = {}
        self.excerpts = excerpts or {}
        """Excerpts made so far, by group number."""
        self.parts: dict[tuple[tuple[Path, ...], int], Excerpt] = {}
        """Excerpts for leaves asked separately from their group, by leaves and number of halvings."""

    @property
    def can_be_cut(self) -> bool:
        """Tell whether a prompt without room for the whole document shows passages of it."""
        return self._count is not None

    @property
    def headings(self) -> str:
        """Return the headings that excerpts show in addition to the document's text."""
        return "\n".join(filter(None, (excerpt.headings for excerpt in self.excerpts.values())))

    @cached_property
    def whole(self) -> Excerpt:
        """Return the whole document."""
        return Excerpt(layout=layout(self.document))

    def excerpt(self, group: Group, max_tokens: int) -> Excerpt:
        """Return the whole document if it fits, else the passages most relevant for the group's fields.

        With hardly any room `LEAST_ROOM` is used: the model's error then says how much too long the prompt is.
        """
        if self._count is None or self.num_tokens <= max_tokens:
            return self.whole
        max_tokens = max(max_tokens, LEAST_ROOM)
        passages, words = self._cut(max_tokens)
        scores = words.scores(self._analyzer.terms(words_of(group)))
        if self._excerpt_rule > 1:
            scores = spread(scores)
        ranked = np.argsort(-scores, kind="stable")
        return self._shown((passages[row] for row in ranked), max_tokens)

    @cached_property
    def num_tokens(self) -> int:
        """Return the token count of the whole document."""
        assert self._count is not None
        return self._count(self.whole.layout.text)

    @cached_property
    def _analyzer(self) -> Analyzer:
        knows_language = self._excerpt_rule > 2
        return Analyzer(language_of(self.whole.layout.text, _LANGUAGE) if knows_language else _LANGUAGE)

    def _cut(self, max_tokens: int) -> tuple[list[Passage], Bm25]:
        size = next(size for size in _PASSAGE_TOKENS if size * _PASSAGES_PER_EXCERPT <= max_tokens)
        if size not in self._cuts:
            passages = Cutter(count=self._likely_tokens, max_tokens=size).cut(self.whole.layout.text)
            words = Postings.of(self._analyzer.terms(self.whole.layout.text[one.start : one.end]) for one in passages)
            self._cuts[size] = passages, Bm25([words])
        return self._cuts[size]

    def _likely_tokens(self, text: str) -> int:
        """Return its share of all tokens by length: exact counts of every tried piece take ten times as long."""
        return math.ceil(self.num_tokens * len(text) / len(self.whole.layout.text))

    def _shown(self, ranked: Iterable[Passage], max_tokens: int) -> Excerpt:
        """Take passages by rank while they fit, and show them in document order."""
        assert self._count is not None
        whole = self.whole.layout
        between = self._count(_BETWEEN)
        taken: dict[int, Passage] = {}
        num_tokens = num_misses = 0
        for rank, passage in enumerate(ranked):
            more = between + self._count(whole.text[passage.start : passage.end])
            if num_tokens + more <= max_tokens:
                taken[rank] = passage
                num_tokens += more
            else:
                num_misses += 1
                if num_misses == _MAX_MISSES:
                    break
        ranks = {whole.to_document(one.start, one.end)[0]: rank for rank, one in taken.items()}
        return Excerpt(layout=pieces_of(whole, joined_spans(taken.values())), ranks=ranks)


def spread(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the scores `[passages]` with those of neighbours added."""
    total = scores.copy()
    for distance, share in enumerate(_BESIDE, start=1):
        total[distance:] += share * scores[:-distance]
        total[:-distance] += share * scores[distance:]
    return total


def pieces_of(shown: LayoutText, spans: list[Span]) -> LayoutText:
    """Return some stretches of a text, in order, separated by empty lines."""
    origins: list[np.ndarray[tuple[int, int], np.dtype[np.int64]]] = []
    length = 0
    for span in spans:
        inside = shown.origins[
            (shown.origins[:, 0] < span.end) & (shown.origins.sum(1) - shown.origins[:, 1] > span.start)
        ]
        start = np.maximum(inside[:, 0], span.start)
        end = np.minimum(inside[:, 0] + inside[:, 2], span.end)
        origins.append(np.stack([start - span.start + length, inside[:, 1] + start - inside[:, 0], end - start], 1))
        length += span.end - span.start + len(_BETWEEN)
    text = _BETWEEN.join(shown.text[span.start : span.end] for span in spans)
    return LayoutText(text=text, origins=np.concatenate(origins) if origins else shown.origins[:0])


def words_of(group: Group) -> str:
    """Return the search words for fields: names and descriptions, including those of their containers."""
    names = [part for leaf in group.leaves for part in leaf.path if part != ITEM]
    paths = {leaf.path[:end] for leaf in group.leaves for end in range(1, len(leaf.path))}
    container_descriptions = [group.containers[path].description for path in sorted(paths) if path in group.containers]
    described = [*container_descriptions, *(leaf.description for leaf in group.leaves)]
    return " ".join(filter(None, [*(_CAPITAL_IN_NAME.sub(" ", name) for name in dict.fromkeys(names)), *described]))
