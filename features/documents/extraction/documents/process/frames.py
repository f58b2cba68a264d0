"""Frames between a reader's process and its parent: a kind, a length and a payload."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import IO

HEAD = struct.Struct("<BQ")
"""Kind and length of the payload."""


class Kind(IntEnum):
    """The parent sends settings once, then names and contents alternately; the child sends the others."""

    SETTINGS = 0
    NAME = 1
    CONTENT = 2
    PAGE = 3  # number of the page being read
    PICTURE = 4  # this page is a picture and may take longer
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
    """Return the payload of the next frame. Raises EOFError if the other side has ended."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        raise EOFError
    return stream.read(HEAD.unpack(head)[1])
