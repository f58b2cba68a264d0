"""Parses a file into a document in this process: chooses the reader, and reports every failure as a DocumentError.

Time and memory are limited by `DocumentReader`, which reads in another process.
"""

from __future__ import annotations

import unicodedata
from functools import partial

from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.formats import Format, format_of
from features.documents.extraction.documents.limits import Limits, Progress
from features.documents.extraction.documents.readers import html, images, mail, ocr, office, pdf, plain, sheets
from features.documents.extraction.errors import DocumentCode, DocumentError

_READERS = {
    Format.TEXT: plain.read_text,
    Format.MARKDOWN: plain.read_markdown,
    Format.JSON: plain.read_json,
    Format.HTML: html.read_html,
}
_PAGED = {
    Format.PDF: pdf.read_pdf,
    Format.DOCX: office.read_docx,
    Format.PPTX: office.read_pptx,
    Format.XLSX: sheets.read_xlsx,
}
PARSERS = "; ".join(("with text", *(reader.PARSER for reader in (plain, html, mail, pdf, office, sheets, images))))
"""Names and versions of all readers: the same bytes with the same string give the same document."""


def parse(content: bytes, name: str, limits: Limits, *, progress: Progress | None = None) -> Document:
    """Read a file. Raises DocumentError for every problem with it."""
    if len(content) > limits.max_bytes:
        message = f"{name} has {len(content)} bytes; the limit is {limits.max_bytes}. Split it"
        raise DocumentError(DocumentCode.TOO_LARGE, message)
    return _read(content, name, 1, limits=limits, progress=progress or Progress())


def _read(content: bytes, name: str, depth: int, *, limits: Limits, progress: Progress) -> Document:
    """Read a file or an attachment: a parser's failure is an error of this one, not of the mail around it."""
    try:
        document = _dispatched(content, name, depth, limits=limits, progress=progress)
    except (DocumentError, MemoryError):
        raise
    except Exception as error:  # files are untrusted: any failure of a parser is the file's fault
        raise DocumentError(DocumentCode.DAMAGED, f"{name}: {type(error).__name__}: {error}") from error
    if not any(map(_is_shown, document.text)):
        raise DocumentError(DocumentCode.NO_TEXT, f"{name} has no text: {_about_pictures(document)}")
    return document


def _is_shown(sign: str) -> bool:
    """Tell whether a character is visible: no blank, and none that the font has no character for."""
    return not (sign.isspace() or sign == "\ufffd" or unicodedata.category(sign) in ("Cc", "Cf"))


def _about_pictures(document: Document) -> str:
    if document.format in images.FORMATS:
        return "the extra `ocr` has found none in it. Photograph or scan it again, or leave it out"
    if document.format != Format.PDF:
        return f"pictures in {document.format} files are not read. Print it to a PDF, which the extra `ocr` reads"
    if ocr.is_installed():
        return "the extra `ocr` has found none in pictures of its pages either. Scan it again, or leave it out"
    return "its pages are pictures, or empty. Install the extra `ocr` (tokenmill[documents,ocr]) to read pictures"


def _dispatched(content: bytes, name: str, depth: int, *, limits: Limits, progress: Progress) -> Document:
    format_name = format_of(content, name)
    if format_name in _PAGED:
        return _PAGED[format_name](content, limits, progress)
    if format_name in images.FORMATS:
        return images.read_image(format_name, content, limits, progress)
    if format_name is Format.MAIL:
        read_attachment = partial(_read_attached, limits=limits, progress=_PicturesOnly(progress))
        return mail.read_mail(content, limits, depth=depth, read_attachment=read_attachment)
    return _READERS[format_name](content, limits)


class _PicturesOnly(Progress):
    """The progress of a mail's attachments: their pages are not the mail's, but their pictures take its time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def picture(self) -> None:
        self._progress.picture()


def _read_attached(content: bytes, name: str, depth: int, *, limits: Limits, progress: Progress) -> Document:
    return _read(content, name, depth + 1, limits=limits, progress=progress)
