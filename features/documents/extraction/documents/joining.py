"""Joins several documents into one: a mail and its attachments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from features.documents.extraction.documents.document import Document, Page
from features.documents.extraction.documents.runs import Runs

_BETWEEN = "\n\n"


def joined(documents: Sequence[Document], *, notes: tuple[str, ...]) -> Document:
    """Join documents in order: pages and tables are renumbered, and one without pages extends the last page.

    The format is that of the first document, which must have a page; the parser names all of them.
    """
    moved: list[Document] = []
    pages: list[Page] = []
    start = num_tables = 0
    for document in documents:
        moved.append(_moved(document, start, len(pages), num_tables))
        pages += moved[-1].pages or [replace(pages.pop(), end=start + len(document.text))]
        start += len(document.text) + len(_BETWEEN)
        num_tables += max((cell.table + 1 for cell in document.cells), default=0)
    return replace(
        documents[0],
        text=_BETWEEN.join(document.text for document in documents),
        pages=tuple(pages),
        runs=Runs.joined([document.runs for document in moved]),
        cells=tuple(cell for document in moved for cell in document.cells),
        headings=tuple(heading for document in moved for heading in document.headings),
        parser="; ".join(dict.fromkeys(document.parser for document in documents)),
        notes=notes,
    )


def _moved(document: Document, by: int, pages: int, tables: int) -> Document:
    runs = document.runs
    return replace(
        document,
        pages=tuple(replace(page, start=page.start + by, end=page.end + by) for page in document.pages),
        runs=Runs(runs.spans + by, runs.pages + np.int32(pages), boxes=runs.boxes, ocr_scores=runs.ocr_scores),
        cells=tuple(
            replace(cell, start=cell.start + by, end=cell.end + by, table=cell.table + tables)
            for cell in document.cells
        ),
        headings=tuple(
            replace(heading, start=heading.start + by, end=heading.end + by) for heading in document.headings
        ),
    )
