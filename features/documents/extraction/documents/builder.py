"""Builds a document from pieces of text and marks by readers, and converts it to canonical form.

Marks are set on the raw text and moved with it.
"""

from __future__ import annotations

from features.documents.extraction.documents.canonical import canonical
from features.documents.extraction.documents.document import Cell, Document, Heading, Page
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.runs import Runs
from features.documents.extraction.errors import DocumentCode, DocumentError

_BETWEEN_PAGES = "\n\n"


class TextBuilder:
    """Builds one document; `build` finishes it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._parts: list[str] = []
        self._cells: list[tuple[int, int, int, int, int]] = []
        self._headings: list[tuple[int, int, int]] = []
        self._pages: list[int] = []
        self.length = 0

    def text(self, part: str) -> None:
        """Append text. Raises DocumentError if the document exceeds its limit."""
        self.length += len(part)
        if self.length > self._limits.max_characters:
            message = f"the text has more than {self._limits.max_characters} characters; split the document"
            raise DocumentError(DocumentCode.TOO_LARGE, message, len(self._pages) - 1 if self._pages else None)
        self._parts.append(part)

    def page(self) -> None:
        """Begin a page, after an empty line. Raises DocumentError if there are too many."""
        if len(self._pages) == self._limits.max_pages:
            message = f"the document has more than {self._limits.max_pages} pages; split it"
            raise DocumentError(DocumentCode.TOO_MANY_PAGES, message, self._limits.max_pages)
        if self._pages:
            self.text(_BETWEEN_PAGES)
        self._pages.append(self.length)

    def cell(self, start: int, *, table: int, row: int, column: int) -> None:
        """Mark the text from `start` to here as a cell."""
        self._cells.append((start, self.length, table, row, column))

    def heading(self, start: int, *, level: int) -> None:
        """Mark the text from `start` to here as a heading."""
        self._headings.append((start, self.length, level))

    def build(self, format_name: str, parser: str, notes: tuple[str, ...] = ()) -> Document:
        """Return the document with canonical text."""
        canonical_text = canonical("".join(self._parts))
        to = canonical_text.offsets.tolist()
        starts = self._pages or [0]
        ends = [*(start - len(_BETWEEN_PAGES) for start in starts[1:]), self.length]
        return Document(
            text=canonical_text.text,
            pages=tuple(Page(start=to[start], end=to[end]) for start, end in zip(starts, ends, strict=True)),
            runs=Runs.of(()),
            cells=tuple(
                Cell(start=to[start], end=to[end], table=table, row=row, column=column)
                for start, end, table, row, column in sorted(self._cells)
            ),
            headings=tuple(Heading(start=to[start], end=to[end], level=level) for start, end, level in self._headings),
            format=format_name,
            parser=parser,
            notes=notes,
        )
