"""What an index was asked, for the process that looks for the answers in it: passages, and the documents they are of.

Knows no chunk, and looks into no document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import orjson
from sqlalchemy.orm import Session, sessionmaker

from features.documents.collections import documents
from features.documents.extraction.course.corpus import FoundPassage
from features.documents.extraction.course.job import custom_id
from jobs.database import transaction
from jobs.settings import MIB
from jobs.storage import Storage, read_documents

MAX_STORED_BYTES = 64 * MIB
"""Of documents as they were read; the one that passes this is the last."""
_FIELDS = [each.name for each in fields(FoundPassage)]

Found = Sequence[Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """Safe to use from several threads."""

    sessions: sessionmaker[Session]
    storage: Storage

    def passages(self, results: bytes, *, num_groups: int) -> Found:
        """Return the passages of each group, out of the results of looking for them."""
        lines = map(orjson.loads, results.splitlines())
        by_line = {line["custom_id"]: line["response"]["body"]["passages"] for line in lines}
        found = [by_line.get(custom_id(0, group), []) for group in range(num_groups)]
        return [[{name: one[name] for name in _FIELDS} for one in passages] for passages in found]

    def stored(self, found: Found, tenant_id: str) -> dict[str, bytes]:
        """Return the documents of passages as they were read, those of the best ranks up to `MAX_STORED_BYTES`.

        Of the others, and of those that are kept no longer, the passages say all.
        """
        ranked = sorted((one for passages in found for one in passages), key=lambda one: int(one["rank"]))
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
