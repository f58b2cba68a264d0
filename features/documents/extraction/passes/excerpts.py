"""What of a document a prompt shows: all of it, or, where that is too long, the passages that its fields need.

Knows no model: the function that is given says how many tokens a text has.
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
from features.documents.extraction.retrieval.postings import Postings
from features.documents.extraction.retrieval.terms import Analyzer

EXCERPT_RULES = (1, 2)
"""Versions of how passages are chosen. A job keeps to its own: what grounds an answer must see what the prompt showed.
The first knows nothing of those beside a passage (`_BESIDE`)."""

_PASSAGE_TOKENS = (256, 128, 64, 32, LEAST_TOKENS)
"""Few sizes, so that groups with a little more or less room share what was cut."""
_PASSAGES_PER_EXCERPT = 4
"""At least: a passage has a quarter of the room at most, so that one which was wrongly found leaves room for others."""
LEAST_ROOM = LEAST_TOKENS * _PASSAGES_PER_EXCERPT
_BESIDE = (0.5, 0.25)
"""How much of a passage's score those beside it have, and those beside these: a value stands near the words that name
it, and often not among them."""
_MAX_MISSES = 4
"""Passages without room, after which there is little left."""
_BYTES_PER_TOKEN = 2
_BETWEEN = "\n\n"
_LANGUAGE = "english"
"""Schemas are written so; of another language it leaves the words mostly as they are, on both sides alike."""
_CAPITAL_IN_NAME = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How much a model reads at once."""

    max_tokens: int
    """Prompt and answer together."""
    count: Count
    excerpt_rule: int = EXCERPT_RULES[-1]


def likely_tokens(text: str) -> int:
    """Count where the model's own tokenizer cannot: two bytes are a token, which most texts have fewer of."""
    return math.ceil(len(text.encode()) / _BYTES_PER_TOKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """What a prompt shows of a document."""

    layout: LayoutText
    ranks: Mapping[int, int] = field(default_factory=dict)
    """The rank of each passage, by where it begins in the document's text; none where all of it is shown."""
    headings: str = ""
    """That are shown before passages, and are no part of the document's text."""


class Showing:
    """One document, laid out once; it is cut once, too, where a prompt has no room for it."""

    def __init__(
        self,
        document: Document,
        count: Count | None = None,
        *,
        excerpt_rule: int = EXCERPT_RULES[-1],
        excerpts: dict[int, Excerpt] | None = None,
    ) -> None:
        """`excerpts` are given where something else has chosen them, for every group."""
        self.document = document
        self._count = count
        self._excerpt_rule = excerpt_rule
        self._cuts: dict[int, tuple[list[Passage], Bm25]] = {}
        self.excerpts = excerpts or {}
        """By the number of their group, once they were made."""
        self.parts: dict[tuple[tuple[Path, ...], int], Excerpt] = {}
        """The same for leaves that are asked apart from others of their group, and how often they were too long."""

    @property
    def can_be_cut(self) -> bool:
        """Tell whether a prompt that has no room for the whole document shows passages of it."""
        return self._count is not None

    @property
    def headings(self) -> str:
        """Return those that excerpts show beside the document's text."""
        return "\n".join(filter(None, (excerpt.headings for excerpt in self.excerpts.values())))

    @cached_property
    def whole(self) -> Excerpt:
        """Return all of the document."""
        return Excerpt(layout=layout(self.document))

    def excerpt(self, group: Group, max_tokens: int) -> Excerpt:
        """Return as much as fits, the passages at the words of the fields first; all of it where it fits.

        Where there is hardly any room it is `LEAST_ROOM`: the model then says of the prompt by how much it is too long.
        """
        if self._count is None or self.num_tokens <= max_tokens:
            return self.whole
        max_tokens = max(max_tokens, LEAST_ROOM)
        passages, words = self._cut(max_tokens)
        scores = words.scores(Analyzer(_LANGUAGE).terms(words_of(group)))
        if self._excerpt_rule > 1:
            scores = spread(scores)
        ranked = np.argsort(-scores, kind="stable")
        return self._shown((passages[row] for row in ranked), max_tokens)

    @cached_property
    def num_tokens(self) -> int:
        """Return how many tokens all of it has, where they are counted."""
        assert self._count is not None
        return self._count(self.whole.layout.text)

    def _cut(self, max_tokens: int) -> tuple[list[Passage], Bm25]:
        size = next(size for size in _PASSAGE_TOKENS if size * _PASSAGES_PER_EXCERPT <= max_tokens)
        if size not in self._cuts:
            passages = Cutter(count=self._likely_tokens, max_tokens=size).cut(self.whole.layout.text)
            analyzer = Analyzer(_LANGUAGE)
            words = Postings.of(analyzer.terms(self.whole.layout.text[one.start : one.end]) for one in passages)
            self._cuts[size] = passages, Bm25([words])
        return self._cuts[size]

    def _likely_tokens(self, text: str) -> int:
        """Return its share of all tokens: counting every piece that is tried takes ten times as long."""
        return math.ceil(self.num_tokens * len(text) / len(self.whole.layout.text))

    def _shown(self, ranked: Iterable[Passage], max_tokens: int) -> Excerpt:
        """Take passages by rank while they fit, and show them in the order of the document."""
        assert self._count is not None
        shown = self.whole.layout
        between = self._count(_BETWEEN)
        taken: dict[int, Passage] = {}
        num_tokens = num_misses = 0
        for rank, passage in enumerate(ranked):
            more = between + self._count(shown.text[passage.start : passage.end])
            if num_tokens + more <= max_tokens:
                taken[rank] = passage
                num_tokens += more
            else:
                num_misses += 1
                if num_misses == _MAX_MISSES:
                    break
        ranks = {shown.to_document(one.start, one.end)[0]: rank for rank, one in taken.items()}
        return Excerpt(layout=pieces_of(shown, joined_spans(taken.values())), ranks=ranks)


def spread(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return [passages] scores to which those beside them have added."""
    total = scores.copy()
    for distance, share in enumerate(_BESIDE, start=1):
        total[distance:] += share * scores[:-distance]
        total[:-distance] += share * scores[distance:]
    return total


def pieces_of(shown: LayoutText, spans: list[Span]) -> LayoutText:
    """Return some stretches of a text, in its order, with an empty line between them."""
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
    """Return what says in words which fields are asked: names and descriptions, of what holds them too."""
    names = [part for leaf in group.leaves for part in leaf.path if part != ITEM]
    paths = {leaf.path[:end] for leaf in group.leaves for end in range(1, len(leaf.path))}
    told = [group.containers[path].description for path in sorted(paths) if path in group.containers]
    described = [*told, *(leaf.description for leaf in group.leaves)]
    return " ".join(filter(None, [*(_CAPITAL_IN_NAME.sub(" ", name) for name in dict.fromkeys(names)), *described]))
