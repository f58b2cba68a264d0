"""Cache of indexes in memory: read from the object store once and kept while there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, replace

from features.documents.extraction.errors import RetrievalError
from features.documents.extraction.retrieval.archive import Archive
from features.documents.extraction.retrieval.columns import unpack
from features.documents.extraction.retrieval.index import Index
from features.documents.extraction.retrieval.signature import Signature
from features.retrieval.objects import read_segment, vectors_key
from features.retrieval.parts import IndexParts
from jobs.errors import NotFoundError, ServiceError
from jobs.storage import Storage

_BYTES_IN_MEMORY = 2
"""Bytes in memory per byte of an index: terms become many small objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedIndex:
    """An index ready to be searched."""

    index: Index
    archives: tuple[Archive, ...]
    """The segments' heads in order; their texts stay in the store."""
    object_keys: tuple[str, ...]
    size_bytes: int
    """Approximate size in memory."""


class LoadedIndexes:
    """Keeps indexes until others need the room. Thread-safe; one thread loads an index while others wait for it."""

    def __init__(self, storage: Storage, *, max_bytes: int) -> None:
        """A requested index is loaded whatever its size; it may be the only one kept."""
        self._storage = storage
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._loading: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._kept: OrderedDict[str, LoadedIndex] = OrderedDict()

    def get(self, parts: IndexParts) -> LoadedIndex | None:
        """Return an index, or None if it has no passage. Raises NotFoundError if it is deleted, ServiceError."""
        if not parts.object_keys:
            return None
        with self._lock:
            loading = self._loading[parts.id]
        with loading:
            loaded = self._cached(parts.id)
            if loaded is None:
                loaded = _loaded(self._storage, parts)
                self._keep(parts.id, loaded)
        return loaded

    @property
    def size_bytes(self) -> int:
        """Return the approximate memory of the kept indexes."""
        with self._lock:
            return sum(each.size_bytes for each in self._kept.values())

    def _cached(self, index_id: str) -> LoadedIndex | None:
        with self._lock:
            if index_id in self._kept:
                self._kept.move_to_end(index_id)
            return self._kept.get(index_id)

    def _keep(self, index_id: str, loaded: LoadedIndex) -> None:
        with self._lock:
            self._kept[index_id] = loaded
            self._loading.pop(index_id, None)
            while len(self._kept) > 1 and sum(each.size_bytes for each in self._kept.values()) > self._max_bytes:
                self._kept.popitem(last=False)


def index_gone(index_id: str) -> NotFoundError:
    """Return the error for an index whose objects are deleted, although its parts still name them."""
    return NotFoundError(f"No index found with id {index_id[:100]!r}: it was deleted.", code="index_gone")


def _loaded(storage: Storage, parts: IndexParts) -> LoadedIndex:
    try:
        archives = [_archive(storage, key, parts.signature) for key in parts.object_keys]
        index = Index([each.segment for each in archives])
    except NotFoundError:
        raise index_gone(parts.id) from None
    except RetrievalError as error:  # objects that this release cannot read
        raise ServiceError(f"index {parts.id!r} cannot be read: {error}") from None
    return LoadedIndex(
        index=index,
        archives=tuple(archives),
        object_keys=parts.object_keys,
        size_bytes=_BYTES_IN_MEMORY * sum(each.size_bytes for each in archives),
    )


def _archive(storage: Storage, key: str, signature: Signature) -> Archive:
    """Return a segment with its vectors, if any. Raises RetrievalError if it does not match the signature."""
    segment_archive = read_segment(storage, key)
    segment_archive.segment.signature.require(replace(signature, embedding=None))
    if signature.embedding is None:
        return segment_archive
    stored = b"".join(storage.iter_chunks(vectors_key(key)))
    _, columns = unpack(stored)
    segment = replace(segment_archive.segment, signature=signature, vectors=columns["vectors"])
    return replace(segment_archive, segment=segment, size_bytes=segment_archive.size_bytes + len(stored))
