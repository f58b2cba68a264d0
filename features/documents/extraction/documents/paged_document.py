"""Joins pages that were read one by one into a document."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from features.documents.extraction.documents.document import Cell, Document, Page
from features.documents.extraction.documents.formats import Format
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.page_text import PageText
from features.documents.extraction.documents.runs import Runs
from features.documents.extraction.errors import DocumentCode, DocumentError

_BETWEEN_PAGES = "\n\n"


def paged_document(
    pages: Sequence[PageText], limits: Limits, *, format_name: Format, parser: str, notes: tuple[str, ...]
) -> Document:
    """Return the document of these pages. Raises DocumentError if its text is too long."""
    starts, start = [], 0
    for number, page in enumerate(pages):
        starts.append(start)
        start += len(page.text) + len(_BETWEEN_PAGES)
        if start > limits.max_characters:
            message = f"the text has more than {limits.max_characters} characters; split the document"
            raise DocumentError(DocumentCode.TOO_LARGE, message, number)
    counts = [len(page.spans) for page in pages]
    return Document(
        text=_BETWEEN_PAGES.join(page.text for page in pages),
        pages=tuple(
            Page(start=start, end=start + len(page.text), width=page.width or None, height=page.height or None)
            for start, page in zip(starts, pages, strict=True)
        ),
        runs=Runs(
            np.concatenate([page.spans + start for start, page in zip(starts, pages, strict=True)]),
            np.repeat(np.arange(len(pages), dtype=np.int32), counts),
            boxes=np.concatenate([page.boxes for page in pages]),
            ocr_scores=np.concatenate([page.ocr_scores for page in pages]),
        ),
        cells=_cells(pages, starts),
        headings=(),
        format=format_name,
        parser=parser,
        notes=notes,
    )


def _cells(pages: Sequence[PageText], starts: Sequence[int]) -> tuple[Cell, ...]:
    """Return the cells of all pages; tables are numbered over the whole document."""
    cells: list[Cell] = []
    num_tables = 0
    for page, by in zip(pages, starts, strict=True):
        cells += (
            Cell(start=by + start, end=by + end, table=num_tables + table, row=row, column=column)
            for start, end, table, row, column in page.cells
        )
        num_tables += max((table + 1 for _, _, table, _, _ in page.cells), default=0)
    return tuple(cells)
