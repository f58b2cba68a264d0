"""Reads the bytes of a document that a line names: a tenant's file, or an object in one of its stores."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session, sessionmaker

from features.documents.extraction.errors import DocumentCode, DocumentError
from features.pipelines import stores
from jobs import files
from jobs.database import transaction
from jobs.errors import NotFoundError
from jobs.lines.document_bodies import ReadRequest
from jobs.settings import Settings
from jobs.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Reads documents, never more than the limit."""

    sessions: sessionmaker[Session]
    storage: Storage
    settings: Settings

    def read(self, request: ReadRequest, *, tenant_id: str, max_bytes: int) -> bytes:
        """Return a document. Raise DocumentError if it is too large, InputError if there is none, ServiceError."""
        if request.file_id is None:
            return self._of_store(request, tenant_id, max_bytes)
        with transaction(self.sessions) as session:
            file = files.get_file(session, tenant_id, request.file_id)
            key, size_bytes = file.object_key, file.size_bytes
        if size_bytes > max_bytes:
            raise _too_large(request.name, str(size_bytes), max_bytes)
        try:
            return b"".join(self.storage.iter_range(key, 0, size_bytes))
        except NotFoundError:
            message = f"the content of file {request.file_id} is lost; upload it again"
            raise NotFoundError(message, code="file_lost") from None

    def _of_store(self, request: ReadRequest, tenant_id: str, max_bytes: int) -> bytes:
        assert request.store is not None
        assert request.key is not None
        with transaction(self.sessions) as session:
            store = stores.get_store(session, tenant_id, request.store)
            session.expunge(store)
        opened = stores.open_registered(
            store, writing=False, timeout_seconds=self.settings.storage_timeout_seconds
        ).open(request.key)
        with opened:
            content = opened.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise _too_large(request.name, f"more than {max_bytes}", max_bytes)
        return content


def _too_large(name: str, size: str, max_bytes: int) -> DocumentError:
    """Return the error that a reader would raise for the whole file."""
    return DocumentError(DocumentCode.TOO_LARGE, f"{name} has {size} bytes, and {max_bytes} are read; split it")
