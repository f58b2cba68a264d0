"""A segment with the texts of its passages as one run of bytes: its head is read whole, a text by its place.

Knows no store. Layout: the sizes of segment and contents, these two, then a record for each passage.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import orjson
from numpy.typing import NDArray

from features.documents.extraction.errors import RetrievalError
from features.documents.extraction.passages.passage import beginning
from features.documents.extraction.retrieval.columns import pack, unpack
from features.documents.extraction.retrieval.segment import Segment

_SIZES = struct.Struct("<QQ")
SIZES_BYTES = _SIZES.size
"""What `head_bytes` needs of the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageText:
    """What is shown of a passage."""

    headings: tuple[str, ...]
    """The outermost first, those alone that do not stand in the text."""
    text: str

    @property
    def shown(self) -> str:
        """Return the text with its headings in a line before it: what is embedded, and put into prompts."""
        return beginning(self.headings) + self.text

    def to_bytes(self) -> bytes:
        return orjson.dumps([self.headings, self.text])

    @classmethod
    def from_bytes(cls, stored: bytes) -> PassageText:
        headings, text = orjson.loads(stored)
        return cls(headings=tuple(headings), text=text)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Archive:
    """The head of one."""

    segment: Segment
    names: tuple[str, ...]
    """Of the segment's documents, as users call them."""
    start: int
    """Where the records begin."""
    ends: NDArray[np.int64]  # [rows]: where each of them ends, from there on
    size_bytes: int
    """Of the head."""

    def record_range(self, row: int) -> tuple[int, int]:
        """Return from where to where the record of a row's passage stands in the object."""
        first = int(self.ends[row - 1]) if row else 0
        return self.start + first, self.start + int(self.ends[row])


def archive(segment: Segment, names: Sequence[str], texts: Sequence[PassageText]) -> bytes:
    """Return the bytes; `names` are of the segment's documents, `texts` of its rows."""
    assert len(names) == len(segment.documents), "each document has a name"
    assert len(texts) == segment.num_rows, "each passage has a text"
    records = [text.to_bytes() for text in texts]
    ends = np.cumsum([len(record) for record in records], dtype=np.int64)
    first, second = segment.to_bytes(), pack({"names": list(names)}, {"ends": ends})
    return b"".join([_SIZES.pack(len(first), len(second)), first, second, *records])


def head_bytes(beginning_of: bytes) -> int:
    """Return how many bytes the head has. Raises RetrievalError for bytes that are too few."""
    if len(beginning_of) < SIZES_BYTES:
        raise RetrievalError("these bytes are no part of an index.")
    num_segment, num_contents = _SIZES.unpack_from(beginning_of)
    return SIZES_BYTES + int(num_segment) + int(num_contents)


def read_head(head: bytes) -> Archive:
    """Read the first `head_bytes` of what `archive` made. Raises RetrievalError for anything else."""
    start = head_bytes(head)
    num_segment, _ = _SIZES.unpack_from(head)
    words, columns = unpack(head[SIZES_BYTES + num_segment : start])
    segment = Segment.from_bytes(head[SIZES_BYTES : SIZES_BYTES + num_segment])
    return Archive(
        segment=segment, names=tuple(words["names"]), start=start, ends=columns["ends"], size_bytes=len(head)
    )
