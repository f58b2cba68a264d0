"""Answers one line: reads a file into the object store, cuts documents into a segment, or grounds an answer.

A document that the store holds for the same parsers is not parsed again. Only the processes of `readers` parse
untrusted bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from features.documents.extraction.course.grounding_child import packed, packed_found
from features.documents.extraction.documents.document import DocumentSummary
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.errors import DocumentError, ExtractionError
from jobs.errors import NotFoundError, ServiceError
from jobs.lines.document_bodies import CutRequest, GroundRequest, ReadRequest
from jobs.storage import Storage, prepared, read_documents
from workers.preparing.answer_lines import answer_lines
from workers.preparing.cutting import SegmentCutter
from workers.preparing.gathering import Gathering
from workers.preparing.line_errors import LineError
from workers.preparing.readers import Readers
from workers.preparing.sources import Sources
from workers.preparing.tokenizers import Tokenizers


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentAnswers:
    """Answers lines. Raises InputError if a line has no answer, and ServiceError if a retry may have one."""

    sources: Sources
    storage: Storage
    tokenizers: Tokenizers
    parsers: str
    """Names and versions of the parsers."""
    limits: Limits

    def answer(
        self, request: ReadRequest | GroundRequest | CutRequest, *, tenant_id: str, readers: Readers
    ) -> dict[str, Any]:
        """Return the body of a line's response.

        Raise LineError for errors of the document or the line, ServiceError if no reader can be started.
        """
        try:
            if isinstance(request, CutRequest):
                cutter = SegmentCutter(self.storage, readers.passages, tokenizers=self.tokenizers, limits=self.limits)
                return cutter.cut(request, tenant_id)
            if isinstance(request, ReadRequest):
                return self._read(request, tenant_id, readers)
            return self._ground(request, tenant_id, readers)
        except DocumentError as error:
            raise LineError(error.message, code=error.code, page=error.page) from None
        except ExtractionError as error:  # no process starts, which is not the document's fault
            raise ServiceError(str(error)) from None

    def _read(self, request: ReadRequest, tenant_id: str, readers: Readers) -> dict[str, Any]:
        content = self.sources.read(request, tenant_id=tenant_id, max_bytes=self.limits.max_bytes)
        sha256 = hashlib.sha256(content).hexdigest()
        key = read_documents.key_of(tenant_id, parsers=self.parsers, sha256=sha256, name=request.name)
        stored = read_documents.find(self.storage, key)
        if stored is None:
            stored = readers.files.read_stored(content, request.name)
            self.storage.put(key, stored)
        summary = DocumentSummary.from_bytes(stored)
        return {"object": "document", "sha256": sha256, "object_key": key, **asdict(summary)}

    def _ground(self, request: GroundRequest, tenant_id: str, readers: Readers) -> dict[str, Any]:
        content = self._answers(request, tenant_id)
        record: dict[str, Any] = orjson.loads(readers.answers.read_stored(content, request.name, owner=tenant_id))
        return {"object": "record", **record}

    def _answers(self, request: GroundRequest, tenant_id: str) -> bytes:
        """Return the answers packed with their source: a document, or the passages found in an index."""
        named = {"number": request.number, "sha256": request.sha256}
        plan = self._own(request.plan_key, tenant_id)
        answers = answer_lines(self.sources.sessions, request, tenant_id=tenant_id)
        if request.object_key is not None:
            return packed(named, plan=plan, answers=answers, document=self._own(request.object_key, tenant_id))
        assert request.found_key is not None, "one of the two keys is set"
        gathering = Gathering(sessions=self.sources.sessions, storage=self.storage)
        passages = gathering.passages(self._own(request.found_key, tenant_id))
        stored = gathering.stored(passages, tenant_id)
        return packed_found(named, plan=plan, answers=answers, found=passages, stored=stored)

    def _own(self, key: str, tenant_id: str) -> bytes:
        """Return a whole object of the tenant."""
        if not prepared.is_of(key, tenant_id):
            raise LineError(f"{key[:200]!r} is not an object of this tenant", code="not_found")
        try:
            return b"".join(self.storage.iter_chunks(key))
        except NotFoundError:
            message = f"{key!r} was deleted after it had not been used for long. Start the extraction again"
            raise LineError(message, code="document_gone") from None
