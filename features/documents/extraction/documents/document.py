"""A document as everything after its parser sees it: one text, and the places in it.

Knows no format and no parser; every span anywhere later is an offset into `Document.text`.
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
    """[start, end) of the text; the size in points as it is shown, None where the format has no pages."""

    start: int
    end: int
    width: float | None = None
    height: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """[start, end) of the text is the cell of a table; all three counts start at 0, tables over the whole document."""

    start: int
    end: int
    table: int
    row: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """[start, end) of the text is a heading; level 1 is the highest."""

    start: int
    end: int
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What a parser found. A format without pages has one page; `notes` say what was left out."""

    text: str
    pages: tuple[Page, ...]
    runs: Runs
    cells: tuple[Cell, ...]
    headings: tuple[Heading, ...]
    format: str
    parser: str  # name and version: the same bytes are parsed again where it changed
    notes: tuple[str, ...] = ()

    def page_at(self, offset: int) -> int:
        """Return the page, from 0, that an offset of the text lies on."""
        return max(bisect_right(self.pages, offset, key=lambda page: page.start) - 1, 0)

    def to_bytes(self) -> bytes:
        """Return one compressed object that `from_bytes` reads."""
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
        """Read what `to_bytes` wrote. Raises DocumentError for anything else, and for versions of a newer release."""
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
    """What is told of a stored document without its places."""

    parser: str
    format: str
    num_pages: int
    num_characters: int

    @classmethod
    def from_bytes(cls, stored: bytes) -> DocumentSummary:
        """Read what `Document.to_bytes` wrote; raises as `Document.from_bytes`."""
        header = _header(stored)
        return cls(
            parser=header["parser"],
            format=header["format"],
            num_pages=len(header["pages"]),
            num_characters=len(header["text"]),
        )


def text_of(stored: bytes) -> str:
    """Return the text alone of what `Document.to_bytes` wrote; raises as `Document.from_bytes`."""
    return str(_header(stored)["text"])


def _header(stored: bytes) -> Any:
    """Return what stands before the runs, which are not unpacked: they are most of it."""
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
        raise DocumentError(DocumentCode.DAMAGED, "these bytes are no stored document")
    version = stored[len(_MAGIC)] if len(stored) > len(_MAGIC) else 0
    if version != _VERSION:
        message = f"this stored document has version {version}; this release reads {_VERSION}: parse the file again"
        raise DocumentError(DocumentCode.UNKNOWN_VERSION, message)
    return stored[len(_MAGIC) + 1 :]


def _damaged(error: Exception) -> DocumentError:
    return DocumentError(DocumentCode.DAMAGED, f"a stored document cannot be unpacked: {error}")
