"""The objects of indexes: their keys, and reading of segments.

They are no files of their tenant, and sweeps of file objects ignore them.
"""

from __future__ import annotations

import re

from features.documents.extraction.retrieval.archive import SIZES_BYTES, Archive, head_bytes, read_head
from jobs.ids import new_id
from jobs.storage import Storage, prepared

_KEY = re.compile(rf"({prepared.OF_TENANT}/indexes/object_[0-9a-f]{{32}})(?:\.vectors)?(?:#[0-9]+)?")


def new_key(tenant_id: str) -> str:
    """Return a fresh key; the row that names it is written before the object or soon after."""
    return f"{prepared.below(tenant_id)}/indexes/{new_id('object')}"


def vectors_key(object_key: str) -> str:
    """Return the key of a segment's vectors."""
    return f"{object_key}.vectors"


def read_segment(storage: Storage, object_key: str) -> Archive:
    """Read a segment without the texts of its passages. Raises NotFoundError, RetrievalError, ServiceError."""
    size = head_bytes(storage.read_range(object_key, 0, SIZES_BYTES))
    return read_head(b"".join(storage.iter_range(object_key, 0, size)))


def named_key(name: str) -> str | None:
    """Return the key by which a row would name an object of the store or a part of one; None if not of an index."""
    match = _KEY.fullmatch(name)
    return None if match is None else match[1]


def is_whole(name: str) -> bool:
    """Tell whether an object of the store belongs to an index and is not a part of one being written."""
    return named_key(name) is not None and "#" not in name
