"""Child process that cuts read documents into passages and builds an index segment: texts are untrusted.

Served like the process that reads files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.limits import Limits, Progress
from features.documents.extraction.documents.process.child import serve
from features.documents.extraction.errors import DocumentCode, DocumentError, ExtractionError, PassageError
from features.documents.extraction.passages.cutting import Cutter
from features.documents.extraction.passages.passage import Passage
from features.documents.extraction.passages.token_count import TokenCount
from features.documents.extraction.passes.excerpts import likely_tokens
from features.documents.extraction.retrieval.archive import PassageText, archive
from features.documents.extraction.retrieval.segment import build
from features.documents.extraction.retrieval.signature import Signature

MODULE = "features.documents.extraction.course.cutting_child"
COUNTED_BY = "two bytes are a token"
"""Replaces the hash of a tokenizer if there is none: see `likely_tokens`."""
_SIZE = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """How documents are cut and their words indexed."""

    max_tokens: int
    overlap_tokens: int
    language: str
    tokenizer_sha256: str | None = None
    """Of the tokenizer that counts; None: two bytes are one token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDocument:
    """A document to cut."""

    id: str
    name: str
    stored: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CutSegment:
    """The segment made of documents."""

    signature: dict[str, Any]
    num_passages: int
    archived: bytes
    """In the format of `features.documents.extraction.retrieval.archive`."""


def packed(cutting: Cutting, documents: Sequence[ReadDocument], tokenizer: bytes = b"") -> bytes:
    """Return the input of the process; `tokenizer` is the file whose hash `cutting` has."""
    named = [(each.id, each.name, len(each.stored)) for each in documents]
    header = {"cutting": asdict(cutting), "documents": named, "tokenizer_bytes": len(tokenizer)}
    return _joined(header, b"".join([tokenizer, *(each.stored for each in documents)]))


def unpacked(answer: bytes) -> CutSegment:
    """Read the output of the process. Raises PassageError if it cannot read the tokenizer."""
    header, archived = _divided(answer)
    if "unreadable" in header:
        raise PassageError(header["unreadable"])
    return CutSegment(**header, archived=archived)


def cut(content: bytes, name: str, limits: Limits, progress: Progress) -> bytes:
    """Return the segment of all documents, preceded by a header. Raises DocumentError."""
    header, stored = _divided(content)
    cutting, size = Cutting(**header["cutting"]), header["tokenizer_bytes"]
    try:
        cutter, signature = _cutter_of(cutting, stored[:size])
    except PassageError as error:  # no fault of the documents
        return _joined({"unreadable": str(error)})
    texts: list[PassageText] = []
    try:
        segment = build(_passages(header["documents"], stored[size:], cutter, texts), signature)
    except ExtractionError as error:
        if isinstance(error, DocumentError):
            raise
        raise DocumentError(DocumentCode.NOT_TEXT, str(error)) from None
    names = [name for _, name, _ in header["documents"]]
    about = {"signature": signature.to_json(), "num_passages": segment.num_rows}
    return _joined(about, archive(segment, names, texts))


def _cutter_of(cutting: Cutting, tokenizer: bytes) -> tuple[Cutter, Signature]:
    """Return the cutter, and the signature of its results. Raises PassageError."""
    cutter = Cutter(count=likely_tokens, max_tokens=cutting.max_tokens, overlap_tokens=cutting.overlap_tokens)
    signature = Signature(cutter=cutter.version, tokenizer_sha256=COUNTED_BY, language=cutting.language)
    if (sha256 := cutting.tokenizer_sha256) is None:
        return cutter, signature
    count = _token_count(sha256, tokenizer)
    version = f"{cutter.version} {count.version}"
    return replace(cutter, count=count), replace(signature, cutter=version, tokenizer_sha256=sha256)


_loaded: dict[str, TokenCount] = {}
"""The last tokenizer by hash: the lines of an index share it, and loading it takes up to a second."""


def _token_count(sha256: str, tokenizer: bytes) -> TokenCount:
    if sha256 not in _loaded:
        _loaded.clear()
        _loaded[sha256] = TokenCount(tokenizer)
    return _loaded[sha256]


def _passages(
    documents: Sequence[tuple[str, str, int]], stored: bytes, cutter: Cutter, texts: list[PassageText]
) -> Iterator[tuple[str, str, Sequence[Passage]]]:
    """Yield each document with its passages, and add their texts to `texts`."""
    start = 0
    for document_id, _, size in documents:
        document = Document.from_bytes(stored[start : start + size])
        start += size
        passages = cutter.cut(document.text, document.headings)
        texts += (PassageText(headings=one.headings, text=document.text[one.start : one.end]) for one in passages)
        yield document_id, document.text, passages


def _joined(header: Mapping[str, Any], rest: bytes = b"") -> bytes:
    """Return the input of `_divided`."""
    head = orjson.dumps(header)
    return _SIZE.pack(len(head)) + head + rest


def _divided(content: bytes) -> tuple[dict[str, Any], bytes]:
    (size,) = _SIZE.unpack_from(content)
    return orjson.loads(content[_SIZE.size : _SIZE.size + size]), content[_SIZE.size + size :]


if __name__ == "__main__":
    serve(cut, MODULE)
