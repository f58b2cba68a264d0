"""A read document in the form used after parsing: one text, and positions in it.

Every later span is an offset into `Document.text`.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import orjson

from features.documents.extraction.documents.runs import Runs
from features.documents.extraction.errors import DocumentCode, DocumentError

_MAGIC = b"tokdoc"
_VERSION = 1
_SIZE = struct.Struct("<Q")
_LEVEL = 6  # of zlib


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The page [start, end) of the text, with its displayed size in points; None for formats without pages."""

    start: int
    end: int
    width: float | None = None
    height: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The table cell [start, end) of the text; table, row and column count from 0, tables over the whole document."""

    start: int
    end: int
    table: int
    row: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """The heading [start, end) of the text; level 1 is the highest."""

    start: int
    end: int
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The result of a parser. A format without pages has one page; `notes` say what was left out."""

    text: str
    pages: tuple[Page, ...]
    runs: Runs
    cells: tuple[Cell, ...]
    headings: tuple[Heading, ...]
    format: str
    parser: str  # name and version: files are parsed again when it changes
    notes: tuple[str, ...] = ()

    def page_at(self, offset: int) -> int:
        """Return the page, from 0, at an offset of the text."""
        return max(bisect_right(self.pages, offset, key=lambda page: page.start) - 1, 0)

    def to_bytes(self) -> bytes:
        """Return one compressed object for `from_bytes`."""
        numbers = {
            "pages": [(page.start, page.end, page.width, page.height) for page in self.pages],
            "cells": [(cell.start, cell.end, cell.table, cell.row, cell.column) for cell in self.cells],
            "headings": [(heading.start, heading.end, heading.level) for heading in self.headings],
        }
        words = {"text": self.text, "format": self.format, "parser": self.parser, "notes": self.notes}
        header = orjson.dumps({**words, **numbers, "runs": len(self.runs)})
        body = b"".join([_SIZE.pack(len(header)), header, self.runs.to_bytes()])
        return _MAGIC + bytes([_VERSION]) + zlib.compress(body, _LEVEL)

    @classmethod
    def from_bytes(cls, stored: bytes) -> Document:
        """Read the output of `to_bytes`. Raises DocumentError for anything else, and for newer versions."""
        body = _body(stored)
        size = _SIZE.unpack_from(body)[0]
        header = orjson.loads(body[_SIZE.size : _SIZE.size + size])
        return cls(
            text=header["text"],
            pages=tuple(Page(start=s, end=e, width=w, height=h) for s, e, w, h in header["pages"]),
            runs=Runs.from_bytes(body[_SIZE.size + size :], header["runs"]),
            cells=tuple(Cell(start=s, end=e, table=t, row=r, column=c) for s, e, t, r, c in header["cells"]),
            headings=tuple(Heading(start=s, end=e, level=level) for s, e, level in header["headings"]),
            format=header["format"],
            parser=header["parser"],
            notes=tuple(header["notes"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSummary:
    """Properties of a stored document without its positions."""

    parser: str
    format: str
    num_pages: int
    num_characters: int

    @classmethod
    def from_bytes(cls, stored: bytes) -> DocumentSummary:
        """Read the output of `Document.to_bytes`; raises as `Document.from_bytes`."""
        header = _header(stored)
        return cls(
            parser=header["parser"],
            format=header["format"],
            num_pages=len(header["pages"]),
            num_characters=len(header["text"]),
        )


def text_of(stored: bytes) -> str:
    """Return only the text from the output of `Document.to_bytes`; raises as `Document.from_bytes`."""
    return str(_header(stored)["text"])


def _header(stored: bytes) -> Any:
    """Return the header without unpacking the runs after it, which are most of the object."""
    packed, unpacking = _packed(stored), zlib.decompressobj()
    try:
        size = _SIZE.unpack(unpacking.decompress(packed, _SIZE.size))[0]
        return orjson.loads(unpacking.decompress(unpacking.unconsumed_tail, size))
    except (zlib.error, struct.error, orjson.JSONDecodeError) as error:
        raise _damaged(error) from None


def _body(stored: bytes) -> bytes:
    try:
        return zlib.decompress(_packed(stored))
    except zlib.error as error:
        raise _damaged(error) from None


def _packed(stored: bytes) -> bytes:
    if stored[: len(_MAGIC)] != _MAGIC:
        raise DocumentError(DocumentCode.DAMAGED, "these bytes are not a stored document")
    version = stored[len(_MAGIC)] if len(stored) > len(_MAGIC) else 0
    if version != _VERSION:
        message = f"this stored document has version {version}; this release reads {_VERSION}: parse the file again"
        raise DocumentError(DocumentCode.UNKNOWN_VERSION, message)
    return stored[len(_MAGIC) + 1 :]


def _damaged(error: Exception) -> DocumentError:
    return DocumentError(DocumentCode.DAMAGED, f"a stored document cannot be unpacked: {error}")
