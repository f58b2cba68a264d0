"""What a renderer and its process say to each other: JSON in frames, its length before it. No template, no process."""

from __future__ import annotations

import struct
from typing import IO, Any

import orjson

LENGTH = struct.Struct(">I")


def write_frame(stream: IO[bytes], payload: bytes) -> None:
    stream.write(LENGTH.pack(len(payload)))
    stream.write(payload)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Any:
    """Return what the next frame holds. Raises EOFError where the other side has ended."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    return orjson.loads(stream.read(LENGTH.unpack(head)[0]))
