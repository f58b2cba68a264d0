"""The segments of an index: their documents, the results of cutting, and the requests that embed passages.

A segment's content determines which passages each request embeds, so answers can be matched to rows.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from features.documents.extraction.retrieval.archive import Archive, PassageText, read_head
from features.documents.extraction.retrieval.columns import pack
from features.documents.progress import DocumentProgress
from features.retrieval.objects import new_key, read_segment, vectors_key
from features.retrieval.tables import IndexSegment, PassageIndex
from jobs.batches.ordered_results import OrderedResults
from jobs.lines.document_bodies import CUT_ENDPOINT, PREPARE_MODEL
from jobs.lines.embedding_bodies import EMBEDDING_ENDPOINT
from jobs.storage import Storage

_MAX_DOCUMENTS = 200
_MAX_CHARACTERS = 4_000_000
"""Limit of a segment unless a single document has more: some 8,000 passages, cut in 2 s when counting bytes."""
_MAX_COUNTED_CHARACTERS = 1_000_000
"""Limit if a tokenizer counts tokens: some 1,800 passages, cut in 3 to 10 s."""
_MAX_INPUTS = 32
_MAX_INPUT_BYTES = 65_536
"""Limit of the passages that one request embeds, which a failed line loses."""

Vectors = NDArray[np.float16]


@dataclass(slots=True, kw_only=True)
class NewSegment:
    """A segment to be made."""

    number: int
    object_key: str
    documents: list[dict[str, str]] = field(default_factory=list)
    """Each in the form that a line has."""
    num_characters: int = 0

    def has_room(self, num_characters: int, *, most: int) -> bool:
        if not self.documents:
            return True
        return len(self.documents) < _MAX_DOCUMENTS and self.num_characters + num_characters <= most

    def line(self, index: PassageIndex) -> bytes:
        """Return the line that makes it, without a newline."""
        body = {
            "model": PREPARE_MODEL,
            "segment_key": self.object_key,
            "documents": self.documents,
            "max_tokens": index.max_tokens,
            "overlap_tokens": index.overlap_tokens,
            "language": index.language,
        }
        if index.tokenizer_sha256 is not None:
            body["tokenizer_sha256"] = index.tokenizer_sha256
        line = {"custom_id": custom_id(self.number), "method": "POST", "url": CUT_ENDPOINT, "body": body}
        return orjson.dumps(line)


def custom_id(number: int, first_row: int | None = None) -> str:
    """Return the custom id of the line that makes a segment, or embeds its passages from a row on."""
    return f"segment-{number}" if first_row is None else f"segment-{number}-{first_row}"


def new_segments(documents: Iterable[DocumentProgress], index: PassageIndex) -> Iterator[NewSegment]:
    """Divide the read documents among segments, in order."""
    tenant_id = index.tenant_id
    most = _MAX_CHARACTERS if index.tokenizer_sha256 is None else _MAX_COUNTED_CHARACTERS
    segment = NewSegment(number=0, object_key=new_key(tenant_id))
    for one in documents:
        if one.read is None or one.read.error is not None:
            continue
        num_characters = int(one.read.body["num_characters"])
        if not segment.has_room(num_characters, most=most):
            yield segment
            segment = NewSegment(number=segment.number + 1, object_key=new_key(tenant_id))
        named = {"id": one.document.id, "name": one.document.name, "object_key": str(one.read.body["object_key"])}
        segment.documents.append(named)
        segment.num_characters += num_characters
    if segment.documents:
        yield segment


# --- vectors ---------------------------------------------------------------------------------------------------------


def embedding_lines(
    storage: Storage, index: PassageIndex, segment: IndexSegment, first: OrderedResults | None = None
) -> Iterator[bytes]:
    """Yield the lines that embed a segment's passages, without newlines. Raises NotFoundError.

    Given the results of the `first` stage, only passages of failed requests are embedded, each by its own line.
    """
    stored = b"".join(storage.iter_chunks(segment.object_key))
    head = read_head(stored)
    for rows in _groups(head):
        requests = [rows] if first is None else _asked_again(rows, first.take(custom_id(segment.number, rows.start)))
        for own in requests:
            texts = [PassageText.from_bytes(stored[slice(*head.record_range(row))]).shown for row in own]
            yield _embedding_line(index, texts, custom_id(segment.number, own.start))


def _asked_again(rows: range, line: Mapping[str, Any] | None) -> Sequence[range]:
    has_failed = line is None or not _data_of(line)
    return [range(row, row + 1) for row in rows] if has_failed and len(rows) > 1 else []


def _embedding_line(index: PassageIndex, texts: Sequence[str], name: str) -> bytes:
    assert index.embedding is not None, "it has a model"
    prefix = index.embedding["document_prefix"]
    body = {
        "model": index.embedding_model,
        "input": [prefix + text for text in texts],
        "encoding_format": "base64",
    }
    return orjson.dumps({"custom_id": name, "method": "POST", "url": EMBEDDING_ENDPOINT, "body": body})


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenVectors:
    """The stored vectors of a segment."""

    size_bytes: int
    num_missing: int
    """Number of passages that the model did not embed."""


def write_vectors(
    storage: Storage, segment: IndexSegment, first: OrderedResults, again: OrderedResults, *, dimensions: int
) -> WrittenVectors:
    """Write the model's answers for a segment's passages; a row without an answer is NaN. Idempotent.

    Raises NotFoundError if the segment is gone, ServiceError.
    """
    head = read_segment(storage, segment.object_key)
    vectors = np.full((head.segment.num_rows, dimensions), np.nan, np.float16)
    for rows in _groups(head):
        line = first.take(custom_id(segment.number, rows.start))
        _put(vectors, rows, line)
        for own in _asked_again(rows, line):
            _put(vectors, own, again.take(custom_id(segment.number, own.start)))
    size_bytes = storage.put(vectors_key(segment.object_key), pack({}, {"vectors": vectors}))
    return WrittenVectors(size_bytes=size_bytes, num_missing=int(np.isnan(vectors[:, 0]).sum()))


def _put(vectors: Vectors, rows: range, line: Mapping[str, Any] | None) -> None:
    """Put the vectors of an answer into their rows, unless they have the size of another model."""
    answers = [] if line is None else [vector_of(each["embedding"]) for each in _data_of(line)]
    if len(answers) == len(rows) and all(len(vector) == vectors.shape[1] for vector in answers):
        vectors[rows.start : rows.stop] = np.stack(answers)


def vector_of(encoded: str) -> NDArray[np.float32]:
    """Decode a vector from the `encoding_format` base64."""
    return np.frombuffer(base64.b64decode(encoded), "<f4")


def _data_of(line: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the vectors of an answer; none if it is an error."""
    return ((line.get("response") or {}).get("body") or {}).get("data") or ()


def _groups(head: Archive) -> Iterator[range]:
    """Yield the rows that one request embeds, in order."""
    start = size = 0
    for row in range(head.segment.num_rows):
        first, last = head.record_range(row)
        if row > start and (row - start == _MAX_INPUTS or size + last - first > _MAX_INPUT_BYTES):
            yield range(start, row)
            start, size = row, 0
        size += last - first
    if head.segment.num_rows:
        yield range(start, head.segment.num_rows)
