"""Passages found in an index, joined into one document in which answers are grounded.

Places in it are mapped back to the documents of the passages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from features.documents.extraction.documents.document import Document, Page
from features.documents.extraction.documents.layout import LayoutText
from features.documents.extraction.documents.runs import Runs
from features.documents.extraction.grounding.spans import Span
from features.documents.extraction.passes.excerpts import Excerpt, Showing
from protocol.passages import BETWEEN, ShownPassage, layout, numbered

_GATHERED = "passages"
"""Format and parser name of such a document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """An index that is asked as one document."""

    index_id: str
    name: str
    passage_tokens: int
    """Maximum tokens of a passage."""
    top_k: int
    """Maximum number of passages shown to a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPassage:
    """A passage that was shown to a question."""

    document_id: str
    document: str
    start: int
    """Offset into its document's text, like `end`."""
    end: int
    rank: int
    shown: str

    @property
    def text(self) -> str:
        """Return its text without headings."""
        return self.shown[len(self.shown) - (self.end - self.start) :]

    @property
    def headings(self) -> str:
        """Return the headings before it."""
        return self.shown[: len(self.shown) - (self.end - self.start)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """Where a page of the gathered document comes from."""

    document_id: str
    document: str
    page: int | None
    """None if only the text of the document is known."""
    shift: int
    """Added to an offset in the gathered text to get one in the document."""
    end: int
    """End of its stretch in the gathered text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Passages as one document, with each stretch of text once."""

    document: Document
    excerpts: tuple[Excerpt, ...]
    """The excerpt shown for each group of fields."""
    _origins: tuple[_Origin, ...]
    """One per page of the document."""

    def showing(self) -> Showing:
        """Return the document as the questions showed it."""
        return Showing(self.document, excerpts=dict(enumerate(self.excerpts)))

    def placed(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record with its places mapped to the documents of the passages."""
        return {**record, "evidence": [self._placed(each) for each in record["evidence"]]}

    def _placed(self, evidence: Mapping[str, Any]) -> dict[str, Any]:
        evidence_placed = {**evidence, "spans": [self._place(span) for span in evidence["spans"]]}
        if "others" in evidence:
            evidence_placed["others"] = [
                {**other, "spans": [self._place(span) for span in other["spans"]]} for other in evidence["others"]
            ]
        return evidence_placed

    def _place(self, span: Mapping[str, Any]) -> dict[str, Any]:
        origin = self._origins[span["page"]]
        return {
            "document_id": origin.document_id,
            "document": origin.document,
            "start": span["start"] + origin.shift,
            "end": min(span["end"], origin.end) + origin.shift,
            "page": origin.page,
            "box": span["box"],
        }


def gather(passages_by_group: Sequence[Sequence[FoundPassage]], stored: Mapping[str, bytes]) -> Gathered:
    """Return the passages of each group as one document.

    `stored` are the read documents by id: for one that is missing, or whose text has changed, no page is known. Raises
    DocumentError for invalid bytes.
    """
    gathering = _Gathering()
    for document_id, passages in _by_document(passages_by_group).items():
        document = Document.from_bytes(stored[document_id]) if document_id in stored else None
        for stretch in _stretches(passages):
            gathering.add(passages[0], stretch, document)
    return Gathered(
        document=gathering.document(),
        excerpts=tuple(gathering.excerpt(passages) for passages in passages_by_group),
        _origins=tuple(gathering.origins),
    )


def _by_document(passages_by_group: Iterable[Sequence[FoundPassage]]) -> dict[str, list[FoundPassage]]:
    by_document: dict[str, list[FoundPassage]] = {}
    for passages in passages_by_group:
        for passage in passages:
            by_document.setdefault(passage.document_id, []).append(passage)
    return by_document


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """Overlapping or adjacent passages of a document, joined."""

    start: int
    text: str

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def _stretches(passages: Iterable[FoundPassage]) -> list[_Stretch]:
    stretches: list[_Stretch] = []
    for one in sorted(passages, key=lambda passage: (passage.start, passage.end)):
        if stretches and one.start <= stretches[-1].end:
            last = stretches.pop()
            stretches.append(_Stretch(start=last.start, text=last.text + one.text[last.end - one.start :]))
        else:
            stretches.append(_Stretch(start=one.start, text=one.text))
    return stretches


class _Gathering:
    """Joins stretches of documents into one document."""

    def __init__(self) -> None:
        self.origins: list[_Origin] = []
        self._parts: list[str] = []
        self._length = 0
        self._pages: list[Page] = []
        self._runs: list[Runs] = []
        self._placed: dict[str, list[tuple[Span, int]]] = {}
        """By document: its stretches, and their offsets here."""

    def add(self, of: FoundPassage, stretch: _Stretch, document: Document | None) -> None:
        """Add a stretch of the document of a passage."""
        base = self._length
        self._placed.setdefault(of.document_id, []).append((Span(stretch.start, stretch.end), base))
        if document is not None and document.text[stretch.start : stretch.end] == stretch.text:
            self._add_places(of, stretch, document)
        else:
            self._add_page(of, stretch, Page(start=stretch.start, end=stretch.end), number=None)
        self._parts.append(stretch.text)
        self._length += len(stretch.text) + len(BETWEEN)

    def document(self) -> Document:
        """Return the document of all added stretches."""
        return Document(
            text=BETWEEN.join(self._parts),
            pages=tuple(self._pages) or (Page(start=0, end=0),),
            runs=Runs.joined(self._runs),
            cells=(),
            headings=(),
            format=_GATHERED,
            parser=_GATHERED,
        )

    def excerpt(self, passages: Sequence[FoundPassage]) -> Excerpt:
        """Return the excerpt of a prompt with these passages, which must have been added."""
        passages_shown = [ShownPassage(document=one.document, shown=one.shown) for one in passages]
        origins, own, ranks, end = [], [], {}, 0
        for number, passage in enumerate(passages, start=1):
            width = len(numbered(number, passages_shown[number - 1]))
            end += width
            length, here = passage.end - passage.start, self._offset(passage)
            origins.append((end - length, here, length))
            own.append(passage.text.rjust(width))
            ranks[here] = passage.rank
            end += len(BETWEEN)
        places = np.array(origins, np.int64).reshape(-1, 3)
        text = LayoutText(text=layout(passages_shown), origins=places, own_text=BETWEEN.join(own))
        return Excerpt(layout=text, ranks=ranks, headings="\n".join(one.headings for one in passages))

    def _offset(self, passage: FoundPassage) -> int:
        placed = self._placed[passage.document_id]
        span, base = next(each for each in placed if each[0].start <= passage.start < each[0].end)
        return base + passage.start - span.start

    def _add_places(self, of: FoundPassage, stretch: _Stretch, document: Document) -> None:
        first = document.page_at(stretch.start)
        runs, shift = document.runs.touching(stretch.start, stretch.end), self._length - stretch.start
        spans = np.clip(runs.spans, stretch.start, stretch.end) + shift
        pages = (runs.pages - first + len(self._pages)).astype(np.int32)
        boxes, ocr_scores = (
            runs.boxes.copy(),
            runs.ocr_scores.copy(),
        )  # slices would keep the whole document's arrays alive
        self._runs.append(Runs(spans, pages, boxes=boxes, ocr_scores=ocr_scores))
        for number in range(first, document.page_at(stretch.end - 1) + 1):
            self._add_page(of, stretch, document.pages[number], number=number)

    def _add_page(self, of: FoundPassage, stretch: _Stretch, page: Page, *, number: int | None) -> None:
        """Add the part of a page, or of the whole text, that is in the stretch."""
        shift = self._length - stretch.start
        start, end = max(page.start, stretch.start) + shift, min(page.end, stretch.end) + shift
        self._pages.append(Page(start=start, end=end, width=page.width, height=page.height))
        origin = _Origin(
            document_id=of.document_id,
            document=of.document,
            page=number,
            shift=-shift,
            end=stretch.end + shift,
        )
        self.origins.append(origin)
