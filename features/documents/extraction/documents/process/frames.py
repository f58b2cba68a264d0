"""What a reader's process and its parent say to each other: frames with a kind and a length.

Knows neither side.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import IO

HEAD = struct.Struct("<BQ")
"""Kind and length of what follows."""


class Kind(IntEnum):
    """The parent sends settings once, then name and content in turns; the child says the rest."""

    SETTINGS = 0
    NAME = 1
    CONTENT = 2
    PAGE = 3  # its number: this page is being read
    PICTURE = 4  # this page is one: it may take longer
    DOCUMENT = 5  # stored
    ERROR = 6  # JSON


def frame(kind: Kind, payload: bytes) -> tuple[bytes, bytes]:
    """Return a frame in two parts, so that a large payload is not copied."""
    return HEAD.pack(kind, len(payload)), payload


def write_frame(stream: IO[bytes], kind: Kind, payload: bytes) -> None:
    for part in frame(kind, payload):
        stream.write(part)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes:
    """Return what the next frame holds. Raises EOFError where the other side has ended."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        raise EOFError
    return stream.read(HEAD.unpack(head)[1])
