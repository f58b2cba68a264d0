"""Tests of scanned pages with the extra [ocr]: their lines with boxes and scores."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pypdfium2
import pytest
from PIL import ExifTags, Image

from features.documents.extraction.documents.process.document_reader import DocumentReader
from features.documents.extraction.errors import DocumentCode, DocumentError
from lab.extraction.pdf_writer import PdfPage, Picture, Words, write_pdf

pytest.importorskip("rapidocr", reason="the extra [ocr] is not installed")
pytestmark = pytest.mark.long

WIDTH, HEIGHT = 400.0, 300.0
LINES = (Words(x=40, y=60, text="Invoice 4711", size=18), Words(x=40, y=110, text="Total 1,234.50 euro", size=14))


@pytest.fixture(scope="module")
def reader() -> Iterator[DocumentReader]:
    with DocumentReader() as made:
        yield made


def printed(words: tuple[Words, ...] = LINES) -> Image.Image:
    """Return a picture of words on paper."""
    pdf = pypdfium2.PdfDocument(write_pdf([PdfPage(words=words, width=WIDTH, height=HEIGHT)]))
    return Image.fromarray(pdf[0].render(scale=2, grayscale=True).to_numpy())


def page_with(picture: Image.Image, width: float = WIDTH) -> PdfPage:
    """Return a page with a picture, `width` wide."""
    pixels = tuple(row.tobytes() for row in np.asarray(picture))
    height = picture.height * width / picture.width
    return PdfPage(pictures=(Picture(x=0, y=0, width=width, height=height, pixels=pixels),), width=WIDTH, height=height)


def scanned(width: float = WIDTH) -> PdfPage:
    return page_with(printed(), width)


def test_a_scanned_page_is_read_line_by_line(reader: DocumentReader) -> None:
    printed = PdfPage(words=(Words(x=40, y=60, text="A page of text as any other."),), width=WIDTH, height=HEIGHT)
    document = reader.read(write_pdf([printed, scanned()]), "a.pdf")
    assert document.text == "A page of text as any other.\n\nInvoice 4711\nTotal 1,234.50 euro"
    assert document.notes == ()
    first, second = (run for run in document.runs if run.page == 1)
    assert document.text[first.start : first.end] == "Invoice 4711"
    assert document.text[second.start : second.end] == "Total 1,234.50 euro"
    assert first.ocr_score is not None
    assert 0.8 < first.ocr_score <= 1
    assert first.box is not None
    assert first.box.x0 == pytest.approx(40, abs=4)
    assert 38 < first.box.y0 < 60 < first.box.y1 < 70
    assert {run.ocr_score for run in document.runs if run.page == 0} == {None}


def test_the_process_that_forks_readers_has_one_thread(reader: DocumentReader) -> None:
    assert reader.parsers
    assert len([*Path(f"/proc/{reader.process_id}/task").iterdir()]) == 1


ROWS = tuple(
    Words(x=40, y=50 + 18 * row, text=f"Row {row} of the page has some words, and ends", size=12) for row in range(6)
)


@pytest.mark.parametrize("turn", [90, 180, 270])
def test_a_turned_scan_is_read_from_its_first_line_on(reader: DocumentReader, turn: int) -> None:
    document = reader.read(write_pdf([page_with(printed(ROWS).rotate(turn, expand=True, fillcolor=255))]), "a.pdf")
    assert document.text.splitlines() == [words.text for words in ROWS]


def test_short_numbers_of_a_turned_scan_are_found(reader: DocumentReader) -> None:
    cells = tuple(
        Words(x=x, y=50 + 24 * row, text=text, size=12)
        for row in range(9)
        for x, text in ((40, f"Part {row} of many"), (280, str(row + 31)))
    )
    document = reader.read(write_pdf([page_with(printed(cells).rotate(90, expand=True, fillcolor=255))]), "a.pdf")
    assert document.text.splitlines() == [f"Part {row} of many\t{row + 31}" for row in range(9)]


@pytest.mark.parametrize("skew", [-3, 3])
def test_a_skewed_scan_is_read_line_by_line(reader: DocumentReader, skew: float) -> None:
    cells = tuple(
        Words(x=x, y=50 + 18 * row, text=text, size=12)
        for row in range(6)
        for x, text in ((40, f"Part {row} of many"), (280, f"{row + 10} euro"))
    )
    document = reader.read(write_pdf([page_with(printed(cells).rotate(skew, fillcolor=255))]), "a.pdf")
    assert document.text.splitlines() == [f"Part {row} of many\t{row + 10} euro" for row in range(6)]
    assert len(document.cells) == 12


def saved(*pictures: Image.Image, form: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    if len(pictures) > 1:
        options |= {"save_all": True, "append_images": pictures[1:]}
    pictures[0].save(stream, form, **options)
    return stream.getvalue()


def test_a_photograph_is_read_as_its_camera_was_held(reader: DocumentReader) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # held upright: the first row is at the right
    before = reader.seconds
    document = reader.read(saved(printed().rotate(90, expand=True), form="JPEG", exif=exif), "a.jpg")
    assert document.text == "Invoice 4711\nTotal 1,234.50 euro"
    (page,) = document.pages
    assert page.width == 842
    assert page.height == pytest.approx(842 * HEIGHT / WIDTH)
    first, _ = document.runs
    assert first.ocr_score is not None
    assert 0.8 < first.ocr_score <= 1
    assert first.box is not None
    assert first.box.x0 == pytest.approx(40 * 842 / WIDTH, abs=8)
    assert reader.seconds > before


def test_the_frames_of_a_tiff_file_are_pages(reader: DocumentReader) -> None:
    second = printed((Words(x=40, y=60, text="Second page", size=18),))
    document = reader.read(saved(printed(), second, form="TIFF", compression="tiff_deflate"), "a.tiff")
    assert document.text == "Invoice 4711\nTotal 1,234.50 euro\n\nSecond page"
    assert [run.page for run in document.runs] == [0, 0, 1]


@pytest.mark.parametrize("size", [(7070, 7070), (50_000, 1000), (1, 40_000), (3, 3)])
def test_paper_of_any_shape_has_its_memory(reader: DocumentReader, size: tuple[int, int]) -> None:
    with pytest.raises(DocumentError) as refusal:
        reader.read(saved(Image.new("RGBA", size, "white"), form="PNG"), "a.png")
    assert refusal.value.code == DocumentCode.NO_TEXT


def test_a_small_picture_on_a_page_is_not_read(reader: DocumentReader) -> None:
    printed = PdfPage(words=(Words(x=40, y=60, text="A page of text as any other."),), width=WIDTH, height=HEIGHT)
    document = reader.read(write_pdf([printed, scanned(width=200)]), "a.pdf")
    assert document.text.strip() == "A page of text as any other."
    assert document.notes == ("1 of 2 pages have no text, the first is page 2",)


def test_a_pdf_whose_pictures_have_no_text_either_fails(reader: DocumentReader) -> None:
    with pytest.raises(DocumentError, match="the extra `ocr` has found none") as refusal:
        reader.read(write_pdf([PdfPage(width=WIDTH, height=HEIGHT)]), "a.pdf")
    assert refusal.value.code == DocumentCode.NO_TEXT
