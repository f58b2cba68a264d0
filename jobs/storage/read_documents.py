"""Read documents in the object store: their keys, lookup, use and expiry. Independent of parsers and rows.

They lie below their tenant, separated by reader version: no tenant gets the result of another's reader.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from jobs.errors import NotFoundError
from jobs.storage import prepared
from jobs.storage.objects import Storage, StoredObject

TOUCHED_AFTER = timedelta(days=1)
"""Interval after which a use is recorded again, by rewriting the object: used documents are not swept."""
_KEY = re.compile(
    rf"{prepared.OF_TENANT}/documents/[0-9a-f]{{12}}/[0-9a-f]{{64}}(?:-[a-z0-9]{{1,8}})?\.doc(?:#[0-9]+)?"
)
_ENDING = re.compile(r"\.([A-Za-z0-9]{1,8})$")


def key_of(tenant_id: str, *, parsers: str, sha256: str, name: str) -> str:
    """Return the key of a tenant's file once it is read; the extension of its name may select the parser."""
    version = hashlib.sha256(parsers.encode()).hexdigest()[:12]
    ending = _ENDING.search(name)
    suffix = "" if ending is None else f"-{ending[1].lower()}"
    return f"{prepared.below(tenant_id)}/documents/{version}/{sha256}{suffix}.doc"


def find(storage: Storage, key: str, *, now: datetime | None = None) -> bytes | None:
    """Return a read document and record its use, or None where there is none. Raises ServiceError.

    The use of a document outside the prefix is not recorded: a prepare worker may not write there.
    """
    modified_at = storage.find_modified_at(key)
    if modified_at is None:
        return None
    try:
        content = b"".join(storage.iter_chunks(key))
    except NotFoundError:  # swept meanwhile
        return None
    if (now or datetime.now(UTC)) - modified_at > TOUCHED_AFTER and prepared.is_prepared(key):
        storage.put(key, content)
    return content


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedDocuments:
    """Read documents to delete: unused since the limit, or of a deleted tenant."""

    limit: datetime
    gone: Collection[str]

    def has(self, stored: StoredObject) -> bool:
        """Return whether an object of the store, or a part of one, is among them."""
        match = _KEY.fullmatch(stored.name)
        return match is not None and (match[1] in self.gone or stored.modified_at < self.limit)

    def has_still(self, storage: Storage, name: str) -> bool:
        """Check again before deleting: listing a store takes minutes, and a use may have been recorded meanwhile."""
        if "#" in name:
            return True
        modified_at = storage.find_modified_at(name)  # None: already deleted
        return modified_at is not None and self.has(StoredObject(name=name, modified_at=modified_at))
