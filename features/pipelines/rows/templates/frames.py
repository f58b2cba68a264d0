"""The messages between a renderer and its process: frames of JSON with a length prefix."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import IO, Any

from tokenmill.row_json import loads

LENGTH = struct.Struct(">I")


def write_frame(stream: IO[bytes], payload: bytes) -> None:
    stream.write(LENGTH.pack(len(payload)))
    stream.write(payload)
    stream.flush()


def read_frame(stream: IO[bytes], *, integer: Callable[[str], Any] = int) -> Any:
    """Return the next frame; `integer` parses its integers. Raise EOFError if the other side has ended."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    return loads(stream.read(LENGTH.unpack(head)[0]), integer=integer)
