"""Collects passages found in an index, and their documents, for the process that grounds answers in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import orjson
from sqlalchemy.orm import Session, sessionmaker

from features.documents.collections import documents
from features.documents.extraction.course.corpus import FoundPassage
from jobs.database import transaction
from jobs.settings import MIB
from jobs.storage import Storage, read_documents

MAX_STORED_BYTES = 64 * MIB
"""Size of the stored documents of one line; the document that exceeds it is the last."""
_FIELDS = [each.name for each in fields(FoundPassage)]

Found = Mapping[str, Sequence[Mapping[str, Any]]]
"""Passages by the custom_id of the line that looked them up, of which each group of fields has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """Reads passages and documents. Safe to use from several threads."""

    sessions: sessionmaker[Session]
    storage: Storage

    def passages(self, results: bytes) -> Found:
        """Return the passages of each group from the results of the retrieval batch."""
        by_line = {line["custom_id"]: line["response"]["body"] for line in map(orjson.loads, results.splitlines())}
        return {
            name: [{each: one[each] for each in _FIELDS} for one in body["passages"]] for name, body in by_line.items()
        }

    def stored(self, found: Found, tenant_id: str) -> dict[str, bytes]:
        """Return the stored documents of the passages, best ranks first, up to `MAX_STORED_BYTES`.

        For the others, and for deleted documents, the passages must suffice.
        """
        ranked = sorted((one for passages in found.values() for one in passages), key=lambda one: int(one["rank"]))
        ids = list(dict.fromkeys(str(one["document_id"]) for one in ranked))
        with transaction(self.sessions) as session:
            keys = documents.object_keys(session, tenant_id, ids)
        stored: dict[str, bytes] = {}
        size_bytes = 0
        for document_id in ids:
            if size_bytes >= MAX_STORED_BYTES:
                break
            key = keys.get(document_id)
            if key is not None and (content := read_documents.find(self.storage, key)) is not None:
                stored[document_id] = content
                size_bytes += len(content)
        return stored
