"""Serialisation of named arrays and a small JSON object as one byte string."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from features.documents.extraction.errors import RetrievalError

Column = NDArray[Any]

_MAGIC = b"tokidx"
_VERSION = 1
_SIZE = struct.Struct("<Q")


def pack(words: Mapping[str, Any], columns: Mapping[str, Column]) -> bytes:
    """Return bytes for `unpack`."""
    shapes = [(name, each.dtype.newbyteorder("<").str, each.shape) for name, each in columns.items()]
    header = orjson.dumps({"words": words, "columns": shapes})
    bodies = [np.ascontiguousarray(each, each.dtype.newbyteorder("<")).tobytes() for each in columns.values()]
    return b"".join([_MAGIC, bytes([_VERSION]), _SIZE.pack(len(header)), header, *bodies])


def unpack(stored: bytes) -> tuple[dict[str, Any], dict[str, Column]]:
    """Return the JSON object and the columns, which share the memory of the bytes. Raises RetrievalError."""
    start = len(_MAGIC) + 1 + _SIZE.size
    if stored[: len(_MAGIC)] != _MAGIC or len(stored) < start:
        raise RetrievalError("these bytes are no part of an index.")
    if stored[len(_MAGIC)] != _VERSION:
        raise RetrievalError(f"this part of an index has version {stored[len(_MAGIC)]}; this release reads {_VERSION}.")
    (size,) = _SIZE.unpack_from(stored, len(_MAGIC) + 1)
    header = orjson.loads(stored[start : start + size])
    start += size
    columns: dict[str, Column] = {}
    for name, dtype, shape in header["columns"]:
        count = int(np.prod(shape, dtype=np.int64))
        if start + count * np.dtype(dtype).itemsize > len(stored):
            raise RetrievalError("a part of an index is truncated; build it again.")
        columns[name] = np.frombuffer(stored, dtype, count, start).reshape(shape)
        start += columns[name].nbytes
    return header["words"], columns
