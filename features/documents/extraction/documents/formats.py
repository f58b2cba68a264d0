"""Detects the format of a file by its content, and for plain text by its name.

Only the directory of a zip is opened.
"""

from __future__ import annotations

import io
import re
import zipfile
from enum import StrEnum
from pathlib import PurePath

from features.documents.extraction.errors import DocumentCode, DocumentError


class Format(StrEnum):
    """Supported formats."""

    PDF = "pdf"
    DOCX = "docx"
    PPTX = "pptx"
    XLSX = "xlsx"
    HTML = "html"
    MAIL = "eml"
    MARKDOWN = "md"
    TEXT = "txt"
    JSON = "json"
    PNG = "png"
    JPEG = "jpg"
    TIFF = "tiff"
    WEBP = "webp"


_SUFFIXES = {
    ".pdf": Format.PDF,
    ".docx": Format.DOCX,
    ".docm": Format.DOCX,
    ".pptx": Format.PPTX,
    ".pptm": Format.PPTX,
    ".xlsx": Format.XLSX,
    ".xlsm": Format.XLSX,
    ".html": Format.HTML,
    ".htm": Format.HTML,
    ".xhtml": Format.HTML,
    ".eml": Format.MAIL,
    ".md": Format.MARKDOWN,
    ".markdown": Format.MARKDOWN,
    ".txt": Format.TEXT,
    ".text": Format.TEXT,
    ".log": Format.TEXT,
    ".csv": Format.TEXT,
    ".jsonl": Format.TEXT,
    ".json": Format.JSON,
    ".png": Format.PNG,
    ".jpg": Format.JPEG,
    ".jpeg": Format.JPEG,
    ".tif": Format.TIFF,
    ".tiff": Format.TIFF,
    ".webp": Format.WEBP,
}
_IMAGES = {
    b"\x89PNG\r\n\x1a\n": Format.PNG,
    b"\xff\xd8\xff": Format.JPEG,
    b"II*\0": Format.TIFF,
    b"MM\0*": Format.TIFF,
    b"II+\0": Format.TIFF,
    b"MM\0+": Format.TIFF,
    b"RIFF": Format.WEBP,
}
_PACKAGES = {"word/": Format.DOCX, "ppt/": Format.PPTX, "xl/": Format.XLSX}
_IN_BYTES = frozenset({Format.PDF, Format.DOCX, Format.PPTX, Format.XLSX, *_IMAGES.values()})
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")
_HTML = re.compile(rb"\s*(<\?xml[^>]*>\s*)?(?>(<!--.*?-->\s*)*)<(!doctype\s+html|html|head|body)\b", re.I | re.S)
_MAIL = re.compile(rb"(Return-Path|Received|From|To|Date|Subject|Message-ID|MIME-Version|Delivered-To): ", re.I)
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_ALLOWED = ", ".join(Format)
_LOOK_BYTES = 4096
_END_BYTES = 22  # minimum size of a zip's end record


def format_of(content: bytes, name: str) -> Format:
    """Return the format. Raises DocumentError for an empty file, an unknown format and a misleading name."""
    if not content:
        raise DocumentError(DocumentCode.EMPTY, f"{name} is empty")
    if b"%PDF-" in content[:1024]:
        return Format.PDF
    if content.startswith(b"PK\x03\x04"):
        return _package_of(content, name)
    if content.startswith(_OLE):
        raise _ole_error(content, name)
    if (image := _image_format_of(content)) is not None:
        return image
    named = _SUFFIXES.get(PurePath(name).suffix.lower())
    if named in _IN_BYTES:
        message = f"{name} is named a {named} file, but does not begin like one"
        raise DocumentError(DocumentCode.DAMAGED, message)
    return named or _text_format_of(content, name)


def _image_format_of(content: bytes) -> Format | None:
    form = next((form for start, form in _IMAGES.items() if content.startswith(start)), None)
    return None if form is Format.WEBP and content[8:12] != b"WEBP" else form


def _package_of(content: bytes, name: str) -> Format:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as package:
            members = package.namelist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        if not 0 <= content.rfind(b"PK\x05\x06") <= len(content) - _END_BYTES:
            message = f"the end of {name} is missing: a zip file ends with its directory"
            raise DocumentError(DocumentCode.TRUNCATED, message) from None
        raise DocumentError(DocumentCode.DAMAGED, f"{name} begins like a zip file but is none: {error}") from None
    if "[Content_Types].xml" in members:
        for folder, format_name in _PACKAGES.items():
            if any(member.startswith(folder) for member in members):
                return format_name
    raise _unsupported(name, "a zip file that is no docx, pptx or xlsx; unpack it")


def _ole_error(content: bytes, name: str) -> DocumentError:
    if _ENCRYPTED_PACKAGE in content:
        return DocumentError(DocumentCode.ENCRYPTED, f"{name} is protected by a password; save it without one")
    return _unsupported(name, "an Office file of before 2007; save it as docx, pptx or xlsx")


def _text_format_of(content: bytes, name: str) -> Format:
    head = content[:_LOOK_BYTES]
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return Format.TEXT
    if _CONTROL.search(head):
        raise _unsupported(name, "in an unknown format")
    if _HTML.match(head.removeprefix(b"\xef\xbb\xbf")):
        return Format.HTML
    return Format.MAIL if _MAIL.match(head) else Format.TEXT


def _unsupported(name: str, what: str) -> DocumentError:
    return DocumentError(DocumentCode.UNSUPPORTED_FORMAT, f"{name} is {what}. Supported are {_ALLOWED}.")
