"""Tests of documents as values: searching in them, and storing them."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.documents.extraction.documents.document import Cell, Document, DocumentSummary, Heading, Page, text_of
from features.documents.extraction.documents.runs import Box, Run, Runs
from features.documents.extraction.errors import DocumentCode, DocumentError


def document(runs: list[Run], text: str = "Total 7\nThe end") -> Document:
    return Document(
        text=text,
        pages=(Page(start=0, end=8, width=595.0, height=842.0), Page(start=8, end=15)),
        runs=Runs.of(runs),
        cells=(Cell(start=6, end=7, table=0, row=2, column=1),),
        headings=(Heading(start=8, end=15, level=1),),
        format="pdf",
        parser="test 1",
        notes=("a.zip was not read",),
    )


COORDINATES = st.floats(0, 2000, width=32)
BOXES = st.builds(Box, x0=COORDINATES, y0=COORDINATES, x1=COORDINATES, y1=COORDINATES)
RUNS = st.builds(
    Run,
    start=st.integers(0, 1 << 40),
    end=st.integers(0, 1 << 40),
    page=st.integers(0, 1 << 20),
    box=st.none() | BOXES,
    ocr_score=st.none() | st.floats(0, 1, width=32),
)


@given(st.lists(RUNS, max_size=20))
def test_a_document_comes_back_from_its_bytes(runs: list[Run]) -> None:
    made = document(runs)
    again = Document.from_bytes(made.to_bytes())
    assert again == made
    assert list(again.runs) == runs


def test_a_span_finds_the_runs_that_it_touches() -> None:
    runs = [Run(start=start, end=start + 4, page=0, box=None) for start in (0, 5, 10)]
    found = Runs.of(runs)
    assert list(found.touching(3, 6)) == runs[:2]
    assert list(found.touching(4, 5)) == []
    assert list(found.touching(4, 10)) == runs[1:2]
    assert list(found.touching(12, 90)) == runs[2:]
    assert list(found.touching(6, 6)) == []


def test_runs_of_pages_are_joined() -> None:
    runs = [Run(start=0, end=3, page=0, box=Box(x0=1, y0=2, x1=3, y1=4)), Run(start=4, end=7, page=1, box=None)]
    assert list(Runs.joined([Runs.of(runs[:1]), Runs.of(()), Runs.of(runs[1:])])) == runs
    assert list(Runs.joined([])) == []


@pytest.mark.parametrize(("offset", "page"), [(0, 0), (7, 0), (8, 1), (15, 1)])
def test_an_offset_lies_on_a_page(offset: int, page: int) -> None:
    assert document([]).page_at(offset) == page


def test_documents_of_other_versions_are_refused() -> None:
    stored = bytearray(document([]).to_bytes())
    stored[6] += 1
    with pytest.raises(DocumentError, match="version 2; this release reads 1") as refusal:
        Document.from_bytes(bytes(stored))
    assert refusal.value.code == DocumentCode.UNKNOWN_VERSION


def test_the_text_alone_is_read_without_unpacking_the_places() -> None:
    runs = [Run(start=number, end=number + 1, page=0, box=None) for number in range(50_000)]
    stored = document(runs).to_bytes()
    tracemalloc.start()
    assert text_of(stored) == "Total 7\nThe end"
    assert DocumentSummary.from_bytes(stored).num_pages == 2
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(document(runs).runs.to_bytes()) / 4


@pytest.mark.parametrize("read", [text_of, DocumentSummary.from_bytes])
@pytest.mark.parametrize(
    "stored", [b"", b"tokdoc\x01", b"tokdoc\x01" + b"?" * 20, document([]).to_bytes()[:30], b"tokdoc\x02"]
)
def test_what_has_no_text_is_refused(stored: bytes, read: Callable[[bytes], Any]) -> None:
    with pytest.raises(DocumentError):
        read(stored)


@pytest.mark.parametrize("stored", [b"", b"%PDF-1.7", document([]).to_bytes()[:-9], b"tokdoc\x01" + b"?" * 20])
def test_bytes_that_are_no_whole_document_are_refused(stored: bytes) -> None:
    with pytest.raises(DocumentError) as refusal:
        Document.from_bytes(stored)
    assert refusal.value.code == DocumentCode.DAMAGED


def test_a_stored_document_is_smaller_than_its_columns() -> None:
    runs = [Run(start=6 * n, end=6 * n + 5, page=0, box=Box(x0=72, y0=n, x1=90, y1=n + 10)) for n in range(2000)]
    made = document(runs, text="words " * 2000)
    assert len(zlib.decompress(made.to_bytes()[7:])) > 5 * len(made.to_bytes())
