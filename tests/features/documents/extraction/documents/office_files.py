"""Office files, written by common libraries, and then changed member by member."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping

import docx
import pptx
import xlsxwriter
from pptx.util import Inches


def word_file() -> bytes:
    """Return a Word file with a header, a heading, a table with merged first cells, and a footer."""
    document = docx.Document()
    document.sections[0].header.paragraphs[0].text = "Company"
    document.add_heading("Bill 7", 2)
    document.add_paragraph("From\tto")
    table = document.add_table(2, 3)
    table.cell(0, 0).merge(table.cell(0, 1)).text = "wide"
    table.cell(1, 0).text = "Pens"
    table.cell(1, 2).text = "12.00"
    document.add_paragraph("Regards")
    document.sections[0].footer.paragraphs[0].text = "Page"
    return _saved(document.save)


def blank_word_file() -> bytes:
    """Return a Word file without text."""
    return _saved(docx.Document().save)


def slides_file() -> bytes:
    """Return a PowerPoint file of two slides: titles with notes; a text box and a table."""
    slides = pptx.Presentation()
    first = slides.slides.add_slide(slides.slide_layouts[0])
    first.shapes.title.text = "Results"
    first.placeholders[1].text = "of the year"
    first.notes_slide.notes_text_frame.text = "Speak slowly."
    second = slides.slides.add_slide(slides.slide_layouts[6])
    second.shapes.add_textbox(0, 0, Inches(2), Inches(1)).text_frame.text = "one\ntwo"
    table = second.shapes.add_table(2, 2, 0, 0, Inches(3), Inches(3)).table
    table.cell(0, 0).text = "Sum"
    table.cell(1, 1).text = "7"
    return _saved(slides.save)


def sheets_file(cells: Mapping[tuple[int, int], object]) -> bytes:
    """Return a workbook of two sheets, the first with these cells, the second empty."""
    stream = io.BytesIO()
    with xlsxwriter.Workbook(stream, {"default_date_format": "yyyy-mm-dd"}) as book:
        sheet = book.add_worksheet("Costs")
        for (row, column), value in cells.items():
            sheet.write(row, column, value)
        book.add_worksheet("Empty")
    return stream.getvalue()


def changed(content: bytes, member: str, change: Callable[[bytes], bytes]) -> bytes:
    """Return a package with one member replaced by a function of its bytes; a missing one starts empty."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            if name != member:
                new.writestr(name, old.read(name))
        new.writestr(member, change(old.read(member) if member in old.namelist() else b""))
    return stream.getvalue()


def _saved(save: Callable[[io.BytesIO], None]) -> bytes:
    stream = io.BytesIO()
    save(stream)
    return stream.getvalue()
