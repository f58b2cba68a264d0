"""Makes a segment of an index from read documents; documents that cannot be cut are left out and reported.

Only a confined process parses the documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from features.documents.extraction.course.cutting_child import Cutting, ReadDocument, packed, unpacked
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.process.document_reader import DocumentReader
from features.documents.extraction.errors import DocumentError, PassageError
from jobs.errors import InputError
from jobs.lines.document_bodies import CutRequest
from jobs.storage import Storage, prepared, read_documents
from workers.preparing.line_errors import LineError
from workers.preparing.tokenizers import Tokenizers

_GONE = "its parsed content has been deleted; build the index again"
_NAME = "documents of an index"


class SegmentCutter:
    """Cuts documents with one confined process."""

    def __init__(self, storage: Storage, reader: DocumentReader, *, tokenizers: Tokenizers, limits: Limits) -> None:
        self._storage = storage
        self._reader = reader
        self._tokenizers = tokenizers
        self._tokenizer = b""
        self._limits = limits
        self._failed: list[dict[str, str]] = []
        self._tenant_id = ""

    def cut(self, request: CutRequest, tenant_id: str) -> dict[str, Any]:
        """Write the segment to the object store and return the body of the line's response.

        Raise DocumentError if the documents cannot be cut together, though each alone can, InputError for objects of
        another tenant, ServiceError, and ExtractionError if no process starts.
        """
        _require_own(request, tenant_id)
        self._tenant_id = tenant_id
        cutting = Cutting(
            max_tokens=request.max_tokens,
            overlap_tokens=request.overlap_tokens,
            language=request.language,
            tokenizer_sha256=request.tokenizer_sha256,
        )
        if request.tokenizer_sha256 is not None:
            self._tokenizer = self._tokenizers.get(request.tokenizer_sha256)
        documents = [document for each in request.documents if (document := self._read(each)) is not None]
        answer, num_cut = self._answer(cutting, documents)
        body = {"object": "index_segment", "num_documents": num_cut, "failed": self._failed}
        if answer is None:
            return {**body, "signature": None, "num_passages": 0, "size_bytes": 0}
        try:
            made = unpacked(answer)
        except PassageError as error:
            message = f"the tokenizer that passages are counted by: {error}"
            raise LineError(message, code="tokenizer_unreadable") from None
        size_bytes = self._storage.put(request.segment_key, made.archived) if made.num_passages else 0
        return {**body, "signature": made.signature, "num_passages": made.num_passages, "size_bytes": size_bytes}

    def _read(self, named: Mapping[str, str]) -> ReadDocument | None:
        stored = read_documents.find(self._storage, named["object_key"])
        if stored is None:
            self._failed.append({"id": named["id"], "code": "document_gone", "message": _GONE})
            return None
        return ReadDocument(id=named["id"], name=named["name"], stored=stored)

    def _answer(self, cutting: Cutting, documents: list[ReadDocument]) -> tuple[bytes | None, int]:
        """Return the segment of the documents that can be cut, and their number."""
        if not documents:
            return None, 0
        try:
            return self._cut(cutting, documents, _NAME), len(documents)
        except DocumentError as error:
            if len(documents) == 1:
                self._note(documents[0], error)
                return None, 0
            good = [each for each in documents if self._is_good(cutting, each)]
            if len(good) == len(documents):  # together they are too large
                raise
        return self._answer(cutting, good)

    def _is_good(self, cutting: Cutting, document: ReadDocument) -> bool:
        try:
            self._cut(cutting, [document], document.name)
        except DocumentError as error:
            self._note(document, error)
            return False
        return True

    def _cut(self, cutting: Cutting, documents: list[ReadDocument], name: str) -> bytes:
        """Cut in a process of this tenant only: it keeps the tokenizer, which takes up to a second to load."""
        return self._reader.read_stored(packed(cutting, documents, self._tokenizer), name, owner=self._tenant_id)

    def _note(self, document: ReadDocument, error: DocumentError) -> None:
        self._failed.append({"id": document.id, "code": error.code, "message": error.message})


def _require_own(request: CutRequest, tenant_id: str) -> None:
    for key in (request.segment_key, *(each["object_key"] for each in request.documents)):
        if not prepared.is_of(key, tenant_id):
            raise InputError(f"{key[:200]!r} is not an object of this tenant", code="not_found")
