"""A cache of the tokenizers that lines name: all lines of an index name the same one."""

from __future__ import annotations

import threading
from collections import OrderedDict

from jobs.errors import NotFoundError
from jobs.storage import Storage, tokenizers
from workers.preparing.line_errors import LineError

_MOST = 2
"""Tokenizers in memory; the largest known ones have some 17 MB."""


class Tokenizers:
    """The cache; safe to use from several threads."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, bytes] = OrderedDict()

    def get(self, sha256: str) -> bytes:
        """Return a tokenizer. Raise LineError if it was deleted, and ServiceError."""
        with self._lock:
            if sha256 in self._cache:
                self._cache.move_to_end(sha256)
                return self._cache[sha256]
        try:
            content = tokenizers.find(self._storage, sha256)
        except NotFoundError:
            message = (
                f"the tokenizer {sha256[:12]}… that its passages are counted by was deleted; a worker of its model "
                "stores it again when it starts"
            )
            raise LineError(message, code="tokenizer_gone") from None
        with self._lock:
            self._cache[sha256] = content
            if len(self._cache) > _MOST:
                self._cache.popitem(last=False)
        return content
