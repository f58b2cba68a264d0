"""The messages between an API process and its parsing process."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import IO

from api.fields import StrictModel
from jobs.errors import InputError

_LENGTH = struct.Struct("!Q")
_MOST_BYTES = 2**30
"""A longer message is other output that was taken for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A body and the model to parse it as."""

    module: str
    name: str
    content: bytes
    kind: str
    """Its content type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The parts of an InputError, which cannot be pickled."""

    kind: type[InputError]
    message: str
    param: str | None
    code: str


Answer = StrictModel | Refusal


def write_message(sink: IO[bytes], content: bytes) -> None:
    sink.write(_LENGTH.pack(len(content)))
    sink.write(content)
    sink.flush()


def read_message(source: IO[bytes]) -> bytes | None:
    """Return the next message; None if the other side has ended."""
    head = source.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > _MOST_BYTES:
        return None
    content = source.read(length)
    return content if len(content) == length else None
