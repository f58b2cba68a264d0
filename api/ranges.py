"""Parses the Range header of a download (RFC 9110 §14). Pure functions."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """Bytes `start` … `end` − 1 of an object."""

    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


class UnsatisfiableRangeError(ValueError):
    """The range begins after the last byte: status 416."""


_ONE_RANGE = re.compile(r"bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})\s*")


def parse_range(header: str | None, size_bytes: int) -> ByteRange | None:
    """Return the requested part, or None for the whole object.

    None also for several ranges, other units and malformed headers: by RFC 9110 §14.2 a server that does not support
    them sends everything with status 200. Raise UnsatisfiableRangeError.
    """
    match = _ONE_RANGE.fullmatch(header or "")
    if match is None or not any(match.groups()):
        return None
    first, last = match.groups()
    if not first:
        return _suffix(int(last), size_bytes)
    start = int(first)
    if last and int(last) < start:
        return None
    if start >= size_bytes:
        raise UnsatisfiableRangeError(f"byte {start} of {size_bytes}")
    return ByteRange(start=start, end=min(int(last) + 1, size_bytes) if last else size_bytes)


def _suffix(num_bytes: int, size_bytes: int) -> ByteRange:
    if num_bytes == 0 or size_bytes == 0:
        raise UnsatisfiableRangeError(f"the last {num_bytes} bytes of {size_bytes}")
    return ByteRange(start=max(0, size_bytes - num_bytes), end=size_bytes)
