"""What the process that draws pages is sent: known to both sides, and free of all that draws."""

from __future__ import annotations

import struct

MODULE = "features.documents.extraction.documents.process.page_child"
"""What such a process runs."""
_ASKED = struct.Struct("<QQ")


def packed(content: bytes, *, page: int, max_side: int) -> bytes:
    """Return what asks for a page by its number, from 0, with so many pixels on its longer side at most."""
    return _ASKED.pack(page, max_side) + content


def unpacked(asked: bytes) -> tuple[int, int, bytes]:
    """Return the page's number, the pixels and the file."""
    page, max_side = _ASKED.unpack_from(asked)
    return page, max_side, asked[_ASKED.size :]
