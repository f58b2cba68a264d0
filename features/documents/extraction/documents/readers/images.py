"""Images as documents, through Pillow and OCR: each frame of a TIFF file is a page, other files have one.

Sizes are checked before pixels are unpacked.
"""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray
from PIL import (
    ExifTags,
    Image,
    JpegImagePlugin,
    MpoImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.formats import Format
from features.documents.extraction.documents.limits import Limits, Progress
from features.documents.extraction.documents.page_text import PageText
from features.documents.extraction.documents.paged_document import paged_document
from features.documents.extraction.documents.readers import ocr
from features.documents.extraction.documents.reading_order.ordering import try_reading_order
from features.documents.extraction.errors import DocumentCode, DocumentError

PARSER = f"images 1 pillow {version('pillow')}"

FORMATS = frozenset({Format.PNG, Format.JPEG, Format.TIFF, Format.WEBP})
"""Their members are named as Pillow names them."""
MAX_PIXELS = 50_000_000
MAX_FRAMES = 1_000
LONGER_SIDE_POINTS = 842.0
"""Of every page: that of A4, as few images tell the size of their paper."""
_PLUGINS = (JpegImagePlugin, MpoImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin)
"""Loaded before the first image; files of some cameras are JPEG and MPO."""
_FLAT = ("1", "P", "PA")
"""Modes whose pixels have no mean."""
_DEEP = ("I", "F")
"""Modes of more than 8 bits begin so."""
_END_BYTES = 1 << 16
_ENDS = {Format.PNG: b"IEND", Format.JPEG: b"\xff\xd9"}
_MOST_NOTES = 10  # of single frames
_TRANSPOSITIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""By EXIF's orientation (CIPA DC-008, 4.6.4)."""


def read_image(form: Format, content: bytes, limits: Limits, progress: Progress) -> Document:
    """Read an image; frames that cannot be read are noted. Raises DocumentError if none can be read."""
    if not ocr.is_installed():
        message = f"a {form} file is a picture: install the extra `ocr` (tokenmill[documents,ocr]) to read its text"
        raise DocumentError(DocumentCode.UNSUPPORTED_FORMAT, message)
    file = ImageFile(form, content)
    num_frames = file.count_frames(min(MAX_FRAMES, limits.max_pages))
    frames = _Frames(file, progress)
    pages = [frames.read(number) for number in range(num_frames)]
    if len(frames.unreadable) == num_frames:
        raise frames.unreadable[0]
    notes = (*file.notes, *frames.notes(num_frames))
    return paged_document(pages, limits, format_name=form, parser=f"{PARSER} {ocr.PARSER}", notes=notes)


class ImageFile:
    """An image in memory; raises DocumentError for every problem with it, with the frame where it concerns one.

    It is opened anew for each frame, as open images keep up to 800 MB, which reading needs.
    """

    def __init__(self, form: Format, content: bytes) -> None:
        self._form = form
        self._content = content
        self.notes: list[str] = []
        Image.MAX_IMAGE_PIXELS = None  # it would only warn, and is no limit of a frame

    def count_frames(self, limit: int) -> int:
        """Return the number of pages; of animations only the first frame is one."""
        with self._opened(None) as image:
            return self._count_frames(image, limit)

    def _count_frames(self, image: Image.Image, limit: int) -> int:
        if self._form is not Format.TIFF:
            if self._form in (Format.PNG, Format.WEBP) and (count := getattr(image, "n_frames", 1)) > 1:
                self.notes.append(f"only the first of its {count} frames is read")
            return 1
        for number in range(1, limit + 1):
            try:
                image.seek(number)
            except EOFError:
                return number
            except Exception as error:  # noqa: BLE001 - the file is untrusted: what is before this frame is read
                self.notes.append(f"there may be frames after the first {number}: {error}")
                return number
        raise DocumentError(DocumentCode.TOO_MANY_PAGES, f"the image has more than {limit} frames; split it", limit)

    def frame(self, number: int, *, max_side: int) -> Image.Image:
        """Return a frame upright, on white, in RGB, with at most `max_side` pixels on its longer side."""
        with self._opened(number) as image:
            image.seek(number)
            _check_size(*image.size, number=number)
            image.draft(None, (max_side, max_side))
            image.load()
            picture = _reduced(image, max_side)
            picture.thumbnail((max_side, max_side))
            picture = _in_colour(picture)
            if (transposition := _TRANSPOSITIONS.get(_orientation(image))) is not None:
                picture = picture.transpose(transposition)
            return picture

    @contextmanager
    def _opened(self, number: int | None) -> Iterator[Image.Image]:
        """Open the file, for a frame or for all, whose name errors have."""
        with self._blamed(number), warnings.catch_warnings(action="ignore"):  # of odd tags
            if self._form is Format.WEBP:  # opening it already unpacks
                _check_size(*_size_of_webp(self._content), number=0)
            with Image.open(io.BytesIO(self._content), formats=[self._form.name]) as image:
                yield image

    @contextmanager
    def _blamed(self, number: int | None) -> Iterator[None]:
        try:
            yield
        except (DocumentError, MemoryError):
            raise
        except Exception as error:
            code = DocumentCode.TRUNCATED if self._is_cut() or "truncated" in str(error) else DocumentCode.DAMAGED
            which = "the image" if number is None else f"frame {number + 1} of the image"
            reason = "it lacks the parts of one" if isinstance(error, UnidentifiedImageError) else str(error)
            raise DocumentError(code, f"{which} cannot be read: {reason}", number) from error

    def _is_cut(self) -> bool:
        if self._form is Format.WEBP:
            return len(self._content) < 8 + int.from_bytes(self._content[4:8], "little")
        end = _ENDS.get(self._form)
        return end is not None and end not in self._content[-_END_BYTES:]


class _Frames:
    """Reads frames one by one, and remembers which cannot be read or put in order, and which have no text."""

    def __init__(self, file: ImageFile, progress: Progress) -> None:
        self._file = file
        self._progress = progress
        self._empty: list[int] = []
        self._unordered: list[int] = []
        self.unreadable: list[DocumentError] = []

    def read(self, number: int) -> PageText:
        """Return a frame in reading order; an empty one if it cannot be read."""
        self._progress.page(number)
        self._progress.picture()
        try:
            picture = self._file.frame(number, max_side=ocr.MAX_SIDE_PIXELS)
        except DocumentError as error:
            self.unreadable.append(error)
            return PageText.empty()
        pixels = np.ascontiguousarray(np.asarray(picture)[:, :, ::-1])
        page = ocr.read_picture(pixels, points_per_pixel=LONGER_SIDE_POINTS / max(picture.size))
        if page is None:
            self._empty.append(number)
            return PageText.empty()
        if (ordered := try_reading_order(page)) is None:
            self._unordered.append(number)
        return ordered or page

    def notes(self, num_frames: int) -> tuple[str, ...]:
        """Return notes of the frames that cannot be read, the first ten one by one, and of all others together."""
        notes = [error.message for error in self.unreadable[:_MOST_NOTES]]
        if (more := len(self.unreadable) - _MOST_NOTES) > 0:
            notes.append(f"{more} more frames of the image cannot be read")
        if self._unordered:
            notes.append(f"{len(self._unordered)} frames are not in order, the first is {self._unordered[0] + 1}")
        if self._empty:
            notes.append(f"{len(self._empty)} of {num_frames} frames have no text, the first is {self._empty[0] + 1}")
        return tuple(notes)


def _check_size(width: int, height: int, *, number: int) -> None:
    if width * height > MAX_PIXELS:
        message = f"frame {number + 1} has {width} × {height} pixels; the limit is {MAX_PIXELS}. Make it smaller"
        raise DocumentError(DocumentCode.UNPACKS_TOO_LARGE, message, number)


def _size_of_webp(content: bytes) -> tuple[int, int]:
    """Return width and height from the first chunk of a WebP file (RFC 9649)."""
    kind, head = content[12:16], content[20:30].ljust(10, b"\0")
    if kind == b"VP8X":
        return 1 + int.from_bytes(head[4:7], "little"), 1 + int.from_bytes(head[7:10], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(head[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack_from("<HH", head, 6)
    return width & 0x3FFF, height & 0x3FFF


def _orientation(image: Image.Image) -> int:
    """Return EXIF's orientation, 1 where it cannot be read; Pillow itself applies that of TIFF files."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # noqa: BLE001 - the file is untrusted, and its pixels have been read
        return 1


def _reduced(image: Image.Image, max_side: int) -> Image.Image:
    """Return means of square blocks, so that the longer side is below twice `max_side`, in 8 bits a channel."""
    factor = max(max(image.size) // max_side, 1)
    if image.mode.startswith(_DEEP):
        return _in_8_bits(np.asarray(image)[::factor, ::factor])
    if image.mode in _FLAT:
        image = image.convert("RGBA" if image.has_transparency_data else "RGB" if image.mode == "P" else "L")
    return image.reduce(factor)


def _in_8_bits(values: NDArray[np.generic]) -> Image.Image:
    """Return grey values from the lowest, as black, to the highest, as white."""
    known = np.nan_to_num(values.astype(np.float32), posinf=0, neginf=0)
    low, high = float(known.min()), float(known.max())
    scale = 255 / (high - low) if high > low else 0.0
    return Image.fromarray(np.rint((known - low) * scale).astype(np.uint8))


def _in_colour(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image.convert("RGB")
    picture = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
