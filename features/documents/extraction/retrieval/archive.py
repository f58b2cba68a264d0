"""A segment and its passages' texts as one byte string: the head is read whole, each text by its byte range.

Layout: the sizes of segment and contents, these two, then one record per passage.
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
"""Number of leading bytes that `head_bytes` needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageText:
    """The text of a passage to show."""

    headings: tuple[str, ...]
    """Outermost first, without headings that are in the text itself."""
    text: str

    @property
    def shown(self) -> str:
        """Return the text preceded by a line with its headings, as embedded and put into prompts."""
        return beginning(self.headings) + self.text

    def to_bytes(self) -> bytes:
        return orjson.dumps([self.headings, self.text])

    @classmethod
    def from_bytes(cls, stored: bytes) -> PassageText:
        headings, text = orjson.loads(stored)
        return cls(headings=tuple(headings), text=text)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Archive:
    """The head of an archive."""

    segment: Segment
    names: tuple[str, ...]
    """Names of the segment's documents, as shown to users."""
    start: int
    """Offset of the first record."""
    ends: NDArray[np.int64]  # [rows]: end of each record, relative to `start`
    size_bytes: int
    """Size of the head."""

    def record_range(self, row: int) -> tuple[int, int]:
        """Return the byte range of a row's passage record in the object."""
        first = int(self.ends[row - 1]) if row else 0
        return self.start + first, self.start + int(self.ends[row])


def archive(segment: Segment, names: Sequence[str], texts: Sequence[PassageText]) -> bytes:
    """Return the archive; `names` are of the segment's documents, `texts` of its rows."""
    assert len(names) == len(segment.documents), "each document has a name"
    assert len(texts) == segment.num_rows, "each passage has a text"
    records = [text.to_bytes() for text in texts]
    ends = np.cumsum([len(record) for record in records], dtype=np.int64)
    first, second = segment.to_bytes(), pack({"names": list(names)}, {"ends": ends})
    return b"".join([_SIZES.pack(len(first), len(second)), first, second, *records])


def head_bytes(beginning_of: bytes) -> int:
    """Return the size of the head. Raises RetrievalError for too few bytes."""
    if len(beginning_of) < SIZES_BYTES:
        raise RetrievalError("these bytes are no part of an index.")
    num_segment, num_contents = _SIZES.unpack_from(beginning_of)
    return SIZES_BYTES + int(num_segment) + int(num_contents)


def read_head(head: bytes) -> Archive:
    """Read the first `head_bytes` of an archive. Raises RetrievalError for anything else."""
    start = head_bytes(head)
    num_segment, _ = _SIZES.unpack_from(head)
    words, columns = unpack(head[SIZES_BYTES + num_segment : start])
    segment = Segment.from_bytes(head[SIZES_BYTES : SIZES_BYTES + num_segment])
    return Archive(
        segment=segment, names=tuple(words["names"]), start=start, ends=columns["ends"], size_bytes=len(head)
    )
