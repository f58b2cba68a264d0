"""Read documents in the object store: under which key, found again, used or forgotten. Knows no parser and no row.

They lie below their tenant, apart by what they were read with: nobody gets what another's reader made.
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
"""After how long a use is noted again, by writing the object anew: what is used is not swept."""
_KEY = re.compile(
    rf"{prepared.OF_TENANT}/documents/[0-9a-f]{{12}}/[0-9a-f]{{64}}(?:-[a-z0-9]{{1,8}})?\.doc(?:#[0-9]+)?"
)
_ENDING = re.compile(r"\.([A-Za-z0-9]{1,8})$")


def key_of(tenant_id: str, *, parsers: str, sha256: str, name: str) -> str:
    """Return where a tenant's file lies once it is read; the ending of its name may decide how that is done."""
    version = hashlib.sha256(parsers.encode()).hexdigest()[:12]
    ending = _ENDING.search(name)
    told = "" if ending is None else f"-{ending[1].lower()}"
    return f"{prepared.below(tenant_id)}/documents/{version}/{sha256}{told}.doc"


def find(storage: Storage, key: str, *, now: datetime | None = None) -> bytes | None:
    """Return a read document and note that it is used, or None where there is none. Raises ServiceError.

    Of one that lies outside of that prefix it is not noted: a prepare worker may not write there.
    """
    modified_at = storage.find_modified_at(key)
    if modified_at is None:
        return None
    try:
        stored = b"".join(storage.iter_chunks(key))
    except NotFoundError:  # swept meanwhile
        return None
    if (now or datetime.now(UTC)) - modified_at > TOUCHED_AFTER and prepared.is_prepared(key):
        storage.put(key, stored)
    return stored


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedDocuments:
    """The read documents that are not kept: unused since the limit, or of a tenant that is gone."""

    limit: datetime
    gone: Collection[str]

    def has(self, found: StoredObject) -> bool:
        """Tell whether an object of the store, or the part of one, is among them."""
        match = _KEY.fullmatch(found.name)
        return match is not None and (match[1] in self.gone or found.modified_at < self.limit)

    def has_still(self, storage: Storage, name: str) -> bool:
        """Tell it again of one that was: listing a store takes minutes, and a use may have been noted meanwhile."""
        if "#" in name:
            return True
        modified_at = storage.find_modified_at(name)  # None: another has deleted it
        return modified_at is not None and self.has(StoredObject(name=name, modified_at=modified_at))
