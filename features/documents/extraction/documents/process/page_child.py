"""Child process that draws pages: untrusted PDFs and images are rendered only here, confined.

Served like the process that reads files.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

import pypdfium2
from PIL import Image

from features.documents.extraction.documents.formats import Format, format_of
from features.documents.extraction.documents.limits import Limits, Progress
from features.documents.extraction.documents.process.child import serve
from features.documents.extraction.documents.process.drawn_pages import MODULE, unpacked
from features.documents.extraction.documents.readers.images import (
    FORMATS,
    LONGER_SIDE_POINTS,
    MAX_FRAMES,
    ImageFile,
)
from features.documents.extraction.documents.readers.pdf import opened
from features.documents.extraction.errors import DocumentCode, DocumentError

_POINTS_PER_INCH = 72.0
_METERS_PER_INCH = 0.0254
_MOST_PER_INCH = 300.0
"""Maximum resolution, even if a small page could have more pixels."""


def draw(content: bytes, name: str, limits: Limits, progress: Progress) -> bytes:
    """Return the page as PNG. Raises DocumentError for a file that is no PDF or image, or has no such page."""
    number, max_side, file = unpacked(content)
    form = format_of(file, name)
    progress.page(number)
    if form in FORMATS:
        image = ImageFile(form, file)
        _check_number(number, image.count_frames(min(MAX_FRAMES, limits.max_pages)), name)
        return _shown(image.frame(number, max_side=max_side))
    if form is not Format.PDF:
        message = f"{name} is neither a PDF nor an image: only their pages can be drawn"
        raise DocumentError(DocumentCode.UNSUPPORTED_FORMAT, message)
    with opened(file) as pdf:
        _check_number(number, len(pdf), name)
        return _drawn(pdf, number, max_side)


def _check_number(number: int, num_pages: int, name: str) -> None:
    if number >= num_pages:
        message = f"there is no page {number}: {name} has {num_pages}, counted from 0"
        raise DocumentError(DocumentCode.TOO_MANY_PAGES, message, num_pages)


def _shown(picture: Image.Image) -> bytes:
    per_meter = max(picture.size) / LONGER_SIDE_POINTS * _POINTS_PER_INCH / _METERS_PER_INCH
    return png(picture.tobytes(), *picture.size, channels=len(picture.getbands()), per_meter=round(per_meter))


def _drawn(pdf: pypdfium2.PdfDocument, number: int, max_side: int) -> bytes:
    try:
        page = pdf[number]
        scale = min(max_side / max(*page.get_size(), 1.0), _MOST_PER_INCH / _POINTS_PER_INCH)
        bitmap = page.render(scale=scale, rev_byteorder=True)
    except pypdfium2.PdfiumError as error:
        raise DocumentError(DocumentCode.DAMAGED, f"page {number} cannot be drawn: {error}", number) from None
    pixels = bitmap.to_numpy().tobytes()
    per_meter = round(scale * _POINTS_PER_INCH / _METERS_PER_INCH)
    return png(pixels, bitmap.width, bitmap.height, channels=bitmap.n_channels, per_meter=per_meter)


_COLOUR_TYPES: Mapping[int, int] = {1: 0, 3: 2, 4: 6}
"""PNG colour types by number of channels: grey, RGB, RGBA."""


def png(pixels: bytes, width: int, height: int, *, channels: int, per_meter: int) -> bytes:
    """Return pixel rows, one byte per channel, as a PNG file (W3C PNG, third edition) that states its resolution."""
    stride = width * channels
    rows = b"".join(b"\0" + pixels[start : start + stride] for start in range(0, stride * height, stride))
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    resolution = struct.pack(">IIB", per_meter, per_meter, 1)
    parts = ((b"IHDR", header), (b"pHYs", resolution), (b"IDAT", zlib.compress(rows, 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, parts))


def _chunk(part: tuple[bytes, bytes]) -> bytes:
    kind, content = part
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


if __name__ == "__main__":
    serve(draw, MODULE)
