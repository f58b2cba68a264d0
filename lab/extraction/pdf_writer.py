"""Write PDFs: text in three standard fonts at given positions, and pictures. Enough to measure and test readers.

Computes no layout.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import StrEnum


class Font(StrEnum):
    """Fonts that every reader of PDFs has."""

    HELVETICA = "Helvetica"
    TIMES = "Times-Roman"
    COURIER = "Courier"


_OTHER_FONTS = tuple(font for font in Font if font is not Font.HELVETICA)
_TURNS = {0: b"1 0 0 1", 90: b"0 1 -1 0", 180: b"-1 0 0 -1", 270: b"0 -1 1 0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Text at its baseline's start, in points from the top left, turned to the left in degrees."""

    x: float
    y: float
    text: str
    size: float = 10.0
    turn: int = 0
    font: Font = Font.HELVETICA


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A grey picture with its top left at (x, y); `pixels` are rows of bytes."""

    x: float
    y: float
    width: float
    height: float
    pixels: tuple[bytes, ...] = (bytes(range(0, 256, 32)),) * 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PdfPage:
    """The content of a page; readers rotate it to the right by `rotation` degrees."""

    words: tuple[Words, ...] = ()
    pictures: tuple[Picture, ...] = ()
    width: float = 595.0
    height: float = 842.0
    rotation: int = 0


def write_pdf(pages: list[PdfPage]) -> bytes:
    """Return a PDF of these pages. Raises UnicodeEncodeError for characters outside Windows-1252."""
    return frame(pdf_objects(pages))


def pdf_objects(pages: list[PdfPage]) -> list[bytes]:
    """Return the objects of a PDF, numbered by position from 1 on; the first is the catalog."""
    first = 4
    kids = b" ".join(b"%d 0 R" % (first + 2 * number) for number in range(len(pages)))
    tree = b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(pages))
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", tree, _font(Font.HELVETICA)]
    picture = first + 2 * len(pages)
    fonts = _places_of_fonts(pages, picture + sum(len(page.pictures) for page in pages))
    for number, page in enumerate(pages):
        objects.append(_page(page, first + 2 * number + 1, picture, fonts))
        objects.append(_stream(b"", _content(page)))
        picture += len(page.pictures)
    images = [_image(image) for page in pages for image in page.pictures]
    return [*objects, *images, *(_font(font) for font in fonts if font is not Font.HELVETICA)]


def frame(objects: list[bytes], trailer: bytes = b"") -> bytes:
    """Return a file of these objects: header, cross-reference table, trailer."""
    parts, places, place = [b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"], [], 0
    place = len(parts[0])
    for number, content in enumerate(objects, start=1):
        part = b"%d 0 obj\n%s\nendobj\n" % (number, content)
        parts.append(part)
        places.append(place)
        place += len(part)
    table = b"".join(b"%010d 00000 n \n" % start for start in places)
    parts.append(b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(objects) + 1, table))
    size = len(objects) + 1
    parts.append(b"trailer\n<< /Size %d /Root 1 0 R %s>>\nstartxref\n%d\n%%%%EOF\n" % (size, trailer, place))
    return b"".join(parts)


def _places_of_fonts(pages: list[PdfPage], first: int) -> dict[Font, int]:
    """Return the object number of each font that is used; Helvetica is always there."""
    used = {words.font for page in pages for words in page.words}
    others = [font for font in _OTHER_FONTS if font in used]
    return {Font.HELVETICA: 3} | {font: first + index for index, font in enumerate(others)}


def _font(font: Font) -> bytes:
    return b"<< /Type /Font /Subtype /Type1 /BaseFont /%s /Encoding /WinAnsiEncoding >>" % font.encode()


def _font_key(font: Font) -> bytes:
    return b"F" if font is Font.HELVETICA else b"F%d" % _OTHER_FONTS.index(font)


def _page(page: PdfPage, content: int, picture: int, fonts: dict[Font, int]) -> bytes:
    box = b"[0 0 %g %g]" % (page.width, page.height)
    pictures = b" ".join(b"/P%d %d 0 R" % (index, picture + index) for index in range(len(page.pictures)))
    named = b" ".join(b"/%s %d 0 R" % (_font_key(font), place) for font, place in fonts.items())
    resources = b"<< /Font << %s >> /XObject << %s >> >>" % (named, pictures)
    head = b"<< /Type /Page /Parent 2 0 R /MediaBox %s /Rotate %d" % (box, page.rotation)
    return b"%s /Resources %s /Contents %d 0 R >>" % (head, resources, content)


def _content(page: PdfPage) -> bytes:
    parts = [
        b"q %g 0 0 %g %g %g cm /P%d Do Q\n"
        % (image.width, image.height, image.x, page.height - image.y - image.height, index)
        for index, image in enumerate(page.pictures)
    ]
    parts.append(b"BT\n")
    for words in page.words:
        matrix = b"%s %g %g Tm" % (_TURNS[words.turn], words.x, page.height - words.y)
        parts.append(b"/%s %g Tf %s (%s) Tj\n" % (_font_key(words.font), words.size, matrix, _escaped(words.text)))
    parts.append(b"ET\n")
    return b"".join(parts)


def _image(picture: Picture) -> bytes:
    size = b"/Width %d /Height %d" % (len(picture.pixels[0]), len(picture.pixels))
    head = b"/Type /XObject /Subtype /Image %s /ColorSpace /DeviceGray /BitsPerComponent 8" % size
    return _stream(head, b"".join(picture.pixels))


def _escaped(text: str) -> bytes:
    return text.encode("cp1252").replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)")


def _stream(attributes: bytes, content: bytes) -> bytes:
    packed = zlib.compress(content)
    head = b"<< %s /Length %d /Filter /FlateDecode >>" % (attributes, len(packed))
    return b"%s\nstream\n%s\nendstream" % (head, packed)
