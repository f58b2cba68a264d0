"""Images that are cut, damaged, or made to cost time and memory, each with the code of its error."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from PIL import Image

from features.documents.extraction.errors import DocumentCode

_PNG = b"\x89PNG\r\n\x1a\n"
_LONG, _SHORT = 4, 3
"""Types of TIFF's values."""


def stored(form: str, *, mode: str = "L", size: tuple[int, int] = (90, 60), **options: Any) -> bytes:
    """Return an image with a pattern that does not compress to nothing."""
    width, height = size
    picture = Image.frombytes("L", size, bytes((7 * x * y + x) % 251 for y in range(height) for x in range(width)))
    stream = io.BytesIO()
    picture.convert(mode).save(stream, form, **options)
    return stream.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, *others: bytes, rows: bytes, bits: int = 8, interlaced: int = 0) -> bytes:
    """Return a PNG file of these rows, with further chunks before them."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, interlaced))
    return _PNG + head + b"".join(others) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def packed_rows(num_bytes: int) -> bytes:
    """Return zeros, compressed."""
    packer, piece = zlib.compressobj(9), bytes(1 << 20)
    return b"".join(packer.compress(piece) for _ in range(num_bytes >> 20)) + packer.flush()


def bomb_in_text() -> bytes:
    text = chunk(b"zTXt", b"Comment\0\0" + packed_rows(64 << 20))
    return png(8, 8, text, rows=bytes(72))


def with_size_of_jpeg(width: int, height: int) -> bytes:
    content = stored("JPEG")
    at = content.index(b"\xff\xc0") + 5
    return content[:at] + struct.pack(">HH", height, width) + content[at + 4 :]


def tiff(*frames: Mapping[int, tuple[int, int]], strip: bytes = b"", next_of_last: int = 0) -> bytes:
    """Return a TIFF file with a directory for each frame: type and value by tag; the strip begins at byte 8."""
    at = 8 + len(strip) + len(strip) % 2
    parts = [struct.pack("<2sHI", b"II", 42, at), strip.ljust(at - 8, b"\0")]
    for number, frame in enumerate(frames, start=1):
        at += 6 + 12 * len(frame)
        entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, (kind, value) in sorted(frame.items()))
        after = at if number < len(frames) else next_of_last
        parts.append(struct.pack("<H", len(frame)) + entries + struct.pack("<I", after))
    return b"".join(parts)


def grey(width: int = 8, height: int = 8, **others: tuple[int, int]) -> dict[int, tuple[int, int]]:
    """Return the tags of a grey frame, some of them changed (`t` and the tag's number)."""
    tags = {256: (_LONG, width), 257: (_LONG, height), 258: (_SHORT, 8), 259: (_SHORT, 1), 262: (_SHORT, 1)}
    tags |= {273: (_LONG, 8), 277: (_SHORT, 1), 278: (_LONG, height), 279: (_LONG, width * height)}
    return tags | {int(name.removeprefix("t")): value for name, value in others.items()}


def webp(kind: bytes, content: bytes) -> bytes:
    body = b"WEBP" + kind + struct.pack("<I", len(content)) + content
    return b"RIFF" + struct.pack("<I", len(body)) + body


def with_canvas(width: int, height: int) -> bytes:
    canvas = b"\0" * 4 + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return webp(b"VP8X", canvas)


def noise(content: bytes, start: int, end: int) -> bytes:
    """Return a file with other bytes in one part."""
    return content[:start] + bytes((byte * 31 + 7) % 256 for byte in content[start:end]) + content[end:]


_HUGE_TILES = {322: (_LONG, 1 << 30), 323: (_LONG, 1 << 30), 324: (_LONG, 8), 325: (_LONG, 9)}
_TRUNCATED, _DAMAGED, _BOMB = DocumentCode.TRUNCATED, DocumentCode.DAMAGED, DocumentCode.UNPACKS_TOO_LARGE
HOSTILE: dict[str, tuple[Callable[[], bytes], DocumentCode]] = {
    "sign.png": (lambda: _PNG + b"\0\0", _TRUNCATED),
    "half.png": (lambda: stored("PNG")[:600], _TRUNCATED),
    "no_rows.png": (lambda: png(8, 8, rows=b"").replace(b"IDAT", b"IDAX"), _DAMAGED),
    "few_rows.png": (lambda: png(900, 900, rows=bytes(72)), _TRUNCATED),
    "wrong_sum.png": (lambda: noise(stored("PNG"), 16, 24), _DAMAGED),
    "noise.png": (lambda: noise(stored("PNG"), 60, 400), _DAMAGED),
    "no_size.png": (lambda: png(0, 0, rows=b""), _DAMAGED),
    "depth.png": (lambda: png(8, 8, rows=bytes(72), bits=3), _DAMAGED),
    "bomb.png": (lambda: png(50_000, 50_000, rows=bytes(1 << 20), bits=1), _BOMB),
    "line.png": (lambda: png(2_000_000_000, 1, rows=b"\0", bits=1), _BOMB),
    "interlaced_bomb.png": (lambda: png(8_000, 8_000, rows=bytes(1 << 20), interlaced=1), _BOMB),
    "bomb_in_text.png": (bomb_in_text, _DAMAGED),
    "text.png": (lambda: b"no picture", _DAMAGED),
    "sign.jpg": (lambda: b"\xff\xd8\xff\xe0", _TRUNCATED),
    "half.jpg": (lambda: stored("JPEG", size=(300, 200))[:2000], _TRUNCATED),
    "no_frame.jpg": (lambda: b"\xff\xd8\xff\xda\0\x02" + bytes(40) + b"\xff\xd9", _DAMAGED),
    "depth.jpg": (lambda: stored("JPEG").replace(b"\xff\xc0\0\x0b\x08", b"\xff\xc0\0\x0b\x0d"), _DAMAGED),
    "bomb.jpg": (partial(with_size_of_jpeg, 65_500, 65_500), _BOMB),
    "no_size.jpg": (partial(with_size_of_jpeg, 0, 0), _DAMAGED),
    "sign.tiff": (lambda: b"II*\0", _DAMAGED),
    "half.tiff": (lambda: stored("TIFF")[:3000], _TRUNCATED),
    "beyond.tiff": (lambda: tiff(grey(t273=(_LONG, 1 << 30))), _TRUNCATED),
    "no_directory.tiff": (lambda: struct.pack("<2sHI", b"II", 42, 1 << 30), _DAMAGED),
    "bomb.tiff": (lambda: tiff(grey(100_000, 100_000, t278=(_LONG, 1), t279=(_LONG, 9)), strip=bytes(9)), _BOMB),
    "packed.tiff": (lambda: tiff(grey(t259=(_SHORT, 999)), strip=bytes(64)), _DAMAGED),
    "noise_in_fax.tiff": (lambda: tiff(grey(t258=(_SHORT, 1), t259=(_SHORT, 4)), strip=bytes(range(64))), _DAMAGED),
    "tiles.tiff": (lambda: tiff(grey(t259=(_SHORT, 8)) | _HUGE_TILES), _DAMAGED),
    "many.tiff": (lambda: tiff(*[grey()] * 1001, strip=bytes(64)), DocumentCode.TOO_MANY_PAGES),
    "half.webp": (lambda: stored("WEBP", mode="RGB")[:300], _TRUNCATED),
    "noise.webp": (lambda: noise(stored("WEBP", mode="RGB"), 30, 200), _DAMAGED),
    "canvas.webp": (partial(with_canvas, 16_383, 16_383), _BOMB),
    "no_chunk.webp": (lambda: webp(b"JUNK", bytes(20)), _DAMAGED),
}
"""What makes each file, and its code."""
