"""Tests of broken and hostile files, each with its code, read by one reader with valid ones between."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterator
from email.message import EmailMessage
from functools import cache, partial

import pytest

from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.documents.process.document_reader import DocumentReader
from features.documents.extraction.documents.process.drawn_pages import MODULE
from features.documents.extraction.documents.process.drawn_pages import packed as packed_page
from features.documents.extraction.documents.process.reading_process import ReadingProcess
from features.documents.extraction.documents.readers import ocr
from features.documents.extraction.errors import DocumentCode, DocumentError
from lab.extraction import worst_files
from lab.extraction.pages import make_pdf
from lab.extraction.pdf_writer import PdfPage, frame, pdf_objects, write_pdf
from tests.features.documents.extraction.documents import builders
from tests.features.documents.extraction.documents.hostile_images import HOSTILE, stored
from tests.features.documents.extraction.documents.office_files import (
    blank_word_file,
    changed,
    sheets_file,
    slides_file,
    word_file,
)

SHEET = "xl/worksheets/sheet1.xml"
LIMITS = Limits(max_unpacked_bytes=64 << 20, seconds=30)

WORD, SLIDES, SHEETS = word_file(), slides_file(), sheets_file({(0, 0): "a"})
GOOD = {
    "a.pdf": make_pdf(2, seed=1),
    "a.docx": WORD,
    "a.pptx": SLIDES,
    "a.xlsx": SHEETS,
    "a.html": b"<p>a",
    "a.txt": b"a",
    "a.md": b"# a",
    "a.json": b"{}",
    "a.eml": b"From: a@example.com\n\na",
}


def packed(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as package:
        for name, content in members.items():
            package.writestr(name, content)
    return stream.getvalue()


def bomb() -> bytes:
    return changed(WORD, "word/media/picture.bin", lambda _: bytes(80 << 20))


def lying_bomb() -> bytes:
    """Return a file that unpacks to more bytes than its directory states."""
    content = changed(WORD, "word/document.xml", lambda xml: xml + b" " * (8 << 20))
    with zipfile.ZipFile(io.BytesIO(content)) as package:
        size = package.getinfo("word/document.xml").file_size
    return content.replace(size.to_bytes(4, "little"), (size - (4 << 20)).to_bytes(4, "little"))


def endless_pages() -> bytes:
    objects = pdf_objects([PdfPage()])
    objects[1] = b"<< /Type /Pages /Kids [%s] /Count 100000 >>" % (b"4 0 R " * 100_000)
    return frame(objects)


def entities() -> bytes:
    head = b'<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>'
    return changed(WORD, "word/document.xml", lambda xml: xml.replace(b"?>", b"?>" + head, 1))


def protected_package() -> bytes:
    """Return a package whose members are marked as encrypted."""
    content = bytearray(WORD)
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = content.find(mark)
        while place >= 0:
            content[place + flags] |= 1
            place = content.find(mark, place + 4)
    return bytes(content)


@cache
def far_apart() -> bytes:
    """Return a workbook with the first and the last cell of a sheet."""
    return sheets_file({(0, 0): 1, (1_048_575, 16_383): 2})


def elsewhere() -> bytes:
    """Return a workbook whose cells lie far apart in a sheet of another name."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(far_apart())) as old, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            member = old.read(name).replace(b"worksheets/sheet1", b"elsewhere/first")
            new.writestr(name.replace("worksheets/sheet1", "elsewhere/first"), member)
    return stream.getvalue()


BROKEN: dict[str, tuple[bytes | Callable[[], bytes], DocumentCode]] = {
    "empty.pdf": (b"", DocumentCode.EMPTY),
    "blank.pdf": (write_pdf([PdfPage(), PdfPage()]), DocumentCode.NO_TEXT),
    "blank.docx": (blank_word_file(), DocumentCode.NO_TEXT),
    "blank.html": (b"<html><script>x</script><img src=a.png>", DocumentCode.NO_TEXT),
    "blank.txt": (b" \n\t\n", DocumentCode.NO_TEXT),
    "unknown.txt": ("\ufffd \ufffd\n\u200b".encode(), DocumentCode.NO_TEXT),
    "picture.gif": (b"GIF89a\x00\x00", DocumentCode.UNSUPPORTED_FORMAT),
    "archive.zip": (packed(a=b"a"), DocumentCode.UNSUPPORTED_FORMAT),
    "nested.zip": (packed(a=packed(b=packed(c=packed(d=b"")))), DocumentCode.UNSUPPORTED_FORMAT),
    "old.doc": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(999), DocumentCode.UNSUPPORTED_FORMAT),
    "binary.txt": (b"a" * 5000 + b"\x00", DocumentCode.NOT_TEXT),
    "half.pdf": (make_pdf(2, seed=1)[:2000], DocumentCode.TRUNCATED),
    "half.docx": (WORD[: len(WORD) // 2], DocumentCode.TRUNCATED),
    "half.pptx": (SLIDES[:-10], DocumentCode.TRUNCATED),
    "half.json": (b'{"a": ', DocumentCode.DAMAGED),
    "no_objects.pdf": (b"%PDF-1.7\nstartxref\n9\n%%EOF", DocumentCode.DAMAGED),
    "no_main.docx": (changed(WORD, "_rels/.rels", lambda _: b"<a/>"), DocumentCode.DAMAGED),
    "cut_xml.docx": (changed(WORD, "word/document.xml", lambda xml: xml[:-9]), DocumentCode.DAMAGED),
    "cut_xml.xlsx": (changed(SHEETS, SHEET, lambda xml: xml[: len(xml) // 2]), DocumentCode.DAMAGED),
    "no_slide.pptx": (changed(SLIDES, "ppt/_rels/presentation.xml.rels", lambda _: b"<a/>"), DocumentCode.DAMAGED),
    "entities.docx": (entities(), DocumentCode.DAMAGED),
    "lying_bomb.docx": (lying_bomb(), DocumentCode.DAMAGED),
    "strict.docx": (
        changed(WORD, "word/document.xml", lambda xml: xml.replace(b"schemas.openxmlformats.org/word", b"purl/word")),
        DocumentCode.UNSUPPORTED_FORMAT,
    ),
    "secret.pdf": (builders.with_password([PdfPage()], b"secret"), DocumentCode.ENCRYPTED),
    "secret.docx": (protected_package(), DocumentCode.ENCRYPTED),
    "secret.xlsx": (
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le"),
        DocumentCode.ENCRYPTED,
    ),
    "long.pdf": (endless_pages(), DocumentCode.TOO_MANY_PAGES),
    "wide.xlsx": (far_apart, DocumentCode.TOO_MANY_ROWS),
    "far.xlsx": (worst_files.far_cell(), DocumentCode.DAMAGED),
    "elsewhere.xlsx": (elsewhere, DocumentCode.TOO_MANY_ROWS),
    "bomb.docx": (bomb, DocumentCode.UNPACKS_TOO_LARGE),
}
"""Contents, or functions that make them where that takes a while, and the codes of their errors."""


def broken(name: str) -> bytes:
    content, _ = BROKEN[name]
    return content() if callable(content) else content


@pytest.fixture(scope="module")
def reader() -> Iterator[DocumentReader]:
    with DocumentReader(LIMITS) as made:
        yield made


@pytest.mark.parametrize("name", sorted(GOOD))
def test_the_good_files_are_read(reader: DocumentReader, name: str) -> None:
    assert reader.read(GOOD[name], name).format == name.removeprefix("a.")


@pytest.fixture(scope="module")
def drawing_reader() -> Iterator[DocumentReader]:
    with DocumentReader(LIMITS.whole(), module=MODULE) as made:
        yield made


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_image_has_its_code_when_it_is_drawn(drawing_reader: DocumentReader, name: str) -> None:
    make, code = HOSTILE[name]
    with pytest.raises(DocumentError) as refusal:
        drawing_reader.read_stored(packed_page(make(), page=0, max_side=400), name)
    assert refusal.value.code == code
    good = packed_page(stored("PNG"), page=0, max_side=400)
    assert drawing_reader.read_stored(good, "a.png").startswith(b"\x89PNG")


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_image_has_its_code_when_it_is_read(reader: DocumentReader, name: str) -> None:
    make, code = HOSTILE[name]
    is_refused_by_name = name == "text.png"
    with pytest.raises(DocumentError) as refusal:
        reader.read(make(), name)
    is_read = ocr.is_installed() or is_refused_by_name
    assert refusal.value.code == (code if is_read else DocumentCode.UNSUPPORTED_FORMAT)
    assert "0x" not in refusal.value.message
    assert reader.read(b"good", "a.txt").text == "good"


def test_without_ocr_the_refusal_of_an_image_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ocr, "is_installed", lambda: False)
    with pytest.raises(DocumentError, match=r"tokenmill\[documents,ocr\]") as refusal:
        parse(stored("PNG"), "a.png", LIMITS)
    assert refusal.value.code == DocumentCode.UNSUPPORTED_FORMAT


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_broken_file_has_its_code_and_the_next_one_is_read(reader: DocumentReader, name: str) -> None:
    _, code = BROKEN[name]
    with pytest.raises(DocumentError) as refusal:
        reader.read(broken(name), name)
    assert refusal.value.code == code
    assert refusal.value.message
    assert reader.read(b"good", "a.txt").text == "good"


@pytest.mark.parametrize(("name", "page"), [("long.pdf", 10_000), ("wide.xlsx", 0), ("no_slide.pptx", 0)])
def test_an_error_names_its_page(reader: DocumentReader, name: str, page: int) -> None:
    with pytest.raises(DocumentError) as refusal:
        reader.read(broken(name), name)
    assert refusal.value.page == page


def test_a_million_empty_rows_are_no_text(reader: DocumentReader) -> None:
    rows = b"".join(b'<row r="%d"/>' % number for number in range(2, 1_048_577))
    content = changed(SHEETS, SHEET, lambda xml: xml.replace(b"</sheetData>", rows + b"</sheetData>"))
    assert reader.read(content, "a.xlsx").text == "Costs\na\n\nEmpty"


def test_a_broken_attachment_is_noted_and_its_mail_is_read(reader: DocumentReader) -> None:
    message = EmailMessage()
    message["From"] = "a@example.com"
    message.set_content("see there")
    for name in ("secret.pdf", "half.docx"):
        message.add_attachment(broken(name), maintype="application", subtype="x", filename=name)
    message.add_attachment(WORD, maintype="application", subtype="x", filename="good.docx")
    document = reader.read(message.as_bytes(), "a.eml")
    assert "see there" in document.text
    assert "Bill 7" in document.text
    assert [note.split(": ")[1] for note in document.notes] == ["encrypted", "truncated"]


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("form.pdf", worst_files.form_of_itself),
        ("layers.pdf", partial(worst_files.packed_three_times, 256 << 20)),
        ("text.xlsx", worst_files.long_text_in_many_cells),
    ],
)
def test_a_small_file_has_little_memory_and_is_tried_once(
    name: str, make: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = make()
    assert len(content) < 50_000
    tries: list[str] = []
    read = ReadingProcess.read

    def noted(process: ReadingProcess, content: bytes, name: str) -> bytes:
        tries.append(name)
        return read(process, content, name)

    monkeypatch.setattr(ReadingProcess, "read", noted)
    with DocumentReader() as default_reader, pytest.raises(DocumentError) as refusal:
        default_reader.read(content, name)
    assert refusal.value.code == DocumentCode.MEMORY_LIMIT
    assert int(re.findall(r"(\d+) MiB", refusal.value.message)[0]) < 400
    assert tries == [name]


def test_what_a_few_bytes_unpack_to_is_read_for_a_bounded_time_and_tried_once() -> None:
    content = worst_files.packed_three_times(64 << 20)
    with DocumentReader(Limits(base_seconds=0.5, seconds_per_mib=0.0)) as small_reader:
        with pytest.raises(DocumentError) as refusal:
            small_reader.read(content, "layers.pdf")
        assert 0.4 < small_reader.seconds < 1.0, "of processor time, for one try"
    assert refusal.value.code == DocumentCode.TIME_LIMIT


def test_a_large_file_has_more_than_a_small_one_and_none_more_than_all() -> None:
    limits = Limits()
    sizes = [0, 1 << 20, 64 << 20]
    assert [limits.of(size).seconds for size in sizes] == [8.0, 20.0, 60.0]
    assert [limits.of(size).base_memory_bytes >> 20 for size in sizes] == [320, 1344, 2048]
    assert limits.whole().of(0) == limits.whole()


def test_xml_that_needs_too_much_memory_is_not_called_damaged() -> None:
    content = changed(
        WORD, "word/document.xml", lambda xml: xml.replace(b"</w:body>", b"<w:p/>" * 3_000_000 + b"</w:body>")
    )
    with DocumentReader(Limits(memory_bytes=400 << 20)) as small_reader, pytest.raises(DocumentError) as refusal:
        small_reader.read(content, "a.docx")
    assert refusal.value.code == DocumentCode.MEMORY_LIMIT
