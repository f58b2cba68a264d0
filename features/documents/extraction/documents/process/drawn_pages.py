"""The request to the process that draws pages: shared by both sides, without the drawing code."""

from __future__ import annotations

import struct

MODULE = "features.documents.extraction.documents.process.page_child"
"""Module that the process runs."""
_ASKED = struct.Struct("<QQ")


def packed(content: bytes, *, page: int, max_side: int) -> bytes:
    """Return the request for a page, counted from 0, with at most `max_side` pixels on its longer side."""
    return _ASKED.pack(page, max_side) + content


def unpacked(request: bytes) -> tuple[int, int, bytes]:
    """Return the page's number, the pixels and the file."""
    page, max_side = _ASKED.unpack_from(request)
    return page, max_side, request[_ASKED.size :]
