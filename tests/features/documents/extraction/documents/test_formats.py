"""Tests of detecting a file's format, by its content first."""

from __future__ import annotations

import io
import zipfile

import pytest

from features.documents.extraction.documents.formats import Format, format_of
from features.documents.extraction.errors import DocumentCode, DocumentError


def package(*members: str) -> bytes:
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w") as made:
        for member in members:
            made.writestr(member, "<x/>")
    return stored.getvalue()


OFFICE = "[Content_Types].xml"


@pytest.mark.parametrize(
    ("content", "name", "expected"),
    [
        (b"%PDF-1.7\n", "a", Format.PDF),
        (b"\n\xff%PDF-1.4", "a.txt", Format.PDF),
        (package(OFFICE, "word/document.xml"), "a", Format.DOCX),
        (package(OFFICE, "ppt/presentation.xml"), "a.zip", Format.PPTX),
        (package(OFFICE, "xl/workbook.xml"), "a.xlsm", Format.XLSX),
        (b"<!DOCTYPE html><p>", "a", Format.HTML),
        (b"\xef\xbb\xbf <!-- x --><HTML>", "page", Format.HTML),
        (b"<p>a", "a.HTM", Format.HTML),
        (b"<!---->" * 500 + b"<html>", "a", Format.HTML),
        (b"<!---->" * 500 + b"no markup", "a", Format.TEXT),  # trying every possibility would never end
        (b"Received: from a\n", "a", Format.MAIL),
        (b"To us: a\n", "a", Format.TEXT),
        (b"# A", "a.md", Format.MARKDOWN),
        (b"{}", "a.json", Format.JSON),
        (b"{}", "a", Format.TEXT),
        ("é".encode("utf-16"), "a", Format.TEXT),
        (b"\x89PNG\r\n\x1a\n\0\0", "a", Format.PNG),
        (b"\xff\xd8\xff\xe0", "a.png", Format.JPEG),
        (b"II*\0", "a", Format.TIFF),
        (b"MM\0*", "a.pdf", Format.TIFF),
        (b"RIFF\0\0\0\0WEBPVP8 ", "a", Format.WEBP),
    ],
)
def test_a_format_is_found(content: bytes, name: str, expected: Format) -> None:
    assert format_of(content, name) == expected


@pytest.mark.parametrize(
    ("content", "name", "code"),
    [
        (b"", "a.txt", DocumentCode.EMPTY),
        (b"no pdf", "a.pdf", DocumentCode.DAMAGED),
        (b"no package", "a.docx", DocumentCode.DAMAGED),
        (package("a.txt"), "a.zip", DocumentCode.UNSUPPORTED_FORMAT),
        (package(OFFICE, "word/document.xml")[:-30], "a.docx", DocumentCode.TRUNCATED),
        (package(OFFICE, "word/document.xml").replace(b"PK\x01\x02", b"PK\x01\x09"), "a.docx", DocumentCode.DAMAGED),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "a.doc", DocumentCode.UNSUPPORTED_FORMAT),
        (
            b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le"),
            "a.xlsx",
            DocumentCode.ENCRYPTED,
        ),
        (b"RIFF\0\0\0\0WAVE", "a.wav", DocumentCode.UNSUPPORTED_FORMAT),
        (b"no picture", "a.JPEG", DocumentCode.DAMAGED),
    ],
)
def test_what_is_not_read_says_why(content: bytes, name: str, code: DocumentCode) -> None:
    with pytest.raises(DocumentError, match=name) as refusal:
        format_of(content, name)
    assert refusal.value.code == code
