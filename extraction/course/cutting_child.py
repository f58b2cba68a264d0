"""The process that cuts read documents into passages, and makes a segment of an index of them: texts are strangers'.

Serves as the reader of files does. Knows no store and no batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from extraction.documents.document import Document
from extraction.documents.limits import Limits, Progress
from extraction.documents.process.child import serve
from extraction.errors import DocumentCode, DocumentError, ExtractionError
from extraction.passages.cutting import Cutter
from extraction.passages.passage import Passage
from extraction.passes.excerpts import likely_tokens
from extraction.retrieval.archive import PassageText, archive
from extraction.retrieval.segment import build
from extraction.retrieval.signature import Signature

MODULE = "extraction.course.cutting_child"
COUNTED_BY = "two bytes are a token"
"""Stands for the hash of a tokenizer: see `likely_tokens`."""
_SIZE = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """How documents are cut, and their words known."""

    max_tokens: int
    overlap_tokens: int
    language: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDocument:
    """A document to be cut."""

    id: str
    name: str
    stored: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CutSegment:
    """What was made of documents."""

    signature: dict[str, Any]
    num_passages: int
    archived: bytes
    """As `extraction.retrieval.archive` writes it."""


def packed(cutting: Cutting, documents: Sequence[ReadDocument]) -> bytes:
    """Return what the process is sent."""
    named = [(each.id, each.name, len(each.stored)) for each in documents]
    said = orjson.dumps({"cutting": asdict(cutting), "documents": named})
    return b"".join([_SIZE.pack(len(said)), said, *(each.stored for each in documents)])


def unpacked(answer: bytes) -> CutSegment:
    """Read what the process answered."""
    said, archived = _divided(answer)
    return CutSegment(**said, archived=archived)


def cut(content: bytes, name: str, limits: Limits, progress: Progress) -> bytes:
    """Return the segment of all documents, behind a few words about it. Raises DocumentError."""
    said, stored = _divided(content)
    cutting = Cutting(**said["cutting"])
    cutter = Cutter(count=likely_tokens, max_tokens=cutting.max_tokens, overlap_tokens=cutting.overlap_tokens)
    signature = Signature(cutter=cutter.version, tokenizer_sha256=COUNTED_BY, language=cutting.language)
    texts: list[PassageText] = []
    try:
        segment = build(_passages(said["documents"], stored, cutter, texts), signature)
    except ExtractionError as error:
        if isinstance(error, DocumentError):
            raise
        raise DocumentError(DocumentCode.NOT_TEXT, str(error)) from None
    names = [name for _, name, _ in said["documents"]]
    about = orjson.dumps({"signature": signature.to_json(), "num_passages": segment.num_rows})
    return _SIZE.pack(len(about)) + about + archive(segment, names, texts)


def _passages(
    documents: Sequence[tuple[str, str, int]], stored: bytes, cutter: Cutter, texts: list[PassageText]
) -> Iterator[tuple[str, str, Sequence[Passage]]]:
    """Yield each document with its passages, whose texts are added to `texts`."""
    start = 0
    for document_id, _, size in documents:
        document = Document.from_bytes(stored[start : start + size])
        start += size
        found = cutter.cut(document.text, document.headings)
        texts += (PassageText(headings=one.headings, text=document.text[one.start : one.end]) for one in found)
        yield document_id, document.text, found


def _divided(content: bytes) -> tuple[dict[str, Any], bytes]:
    (size,) = _SIZE.unpack_from(content)
    return orjson.loads(content[_SIZE.size : _SIZE.size + size]), content[_SIZE.size + size :]


if __name__ == "__main__":
    serve(cut, MODULE)
