"""The tokenizers that lines name, in memory: the lines of an index name the same one. Knows no line."""

from __future__ import annotations

import threading
from collections import OrderedDict

from jobs.errors import NotFoundError
from jobs.storage import Storage, tokenizers
from workers.preparing.line_errors import LineError

_MOST = 2
"""In memory; the largest that are known have some 17 MB."""


class Tokenizers:
    """Safe to use from several threads."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._found: OrderedDict[str, bytes] = OrderedDict()

    def get(self, sha256: str) -> bytes:
        """Return a tokenizer. Raises LineError where it is kept no longer, and ServiceError."""
        with self._lock:
            if sha256 in self._found:
                self._found.move_to_end(sha256)
                return self._found[sha256]
        try:
            content = tokenizers.find(self._storage, sha256)
        except NotFoundError:
            message = (
                f"the tokenizer {sha256[:12]}… that its passages are counted by is kept no longer; a worker of its "
                "model keeps it anew when it starts"
            )
            raise LineError(message, code="tokenizer_gone") from None
        with self._lock:
            self._found[sha256] = content
            if len(self._found) > _MOST:
                self._found.popitem(last=False)
        return content
