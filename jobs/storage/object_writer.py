"""Writing one object of the store: by a single request where it is small, else as a multipart upload."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import obstore

from jobs.settings import MIB

if TYPE_CHECKING:
    from obstore import WritableFile
    from obstore.store import ObjectStore

# Parts of 8 MiB, two under way: S3 allows 10,000 parts (80 GB), and one upload holds at most about 32 MiB.
_PART_BYTES = 8 * MIB
_PARTS_UNDER_WAY = 2


class ObjectWriter:
    """An object open for writing: call `write` any number of times. Made by `Storage.writer`.

    Up to one part is held and put by a single request; what is larger is a multipart upload.
    """

    def __init__(self, store: ObjectStore, key: str, reported: Callable[[], AbstractContextManager[None]]) -> None:
        self._store = store
        self._key = key
        self._reported = reported
        self._held: list[bytes] = []
        self._stream: WritableFile | None = None
        self.size_bytes = 0

    def write(self, part: bytes) -> None:
        self.size_bytes += len(part)
        self._held.append(part)
        if self._stream is not None or self.size_bytes > _PART_BYTES:
            with self._reported():
                self._write_held()

    def finish(self) -> bool:
        """Make the object appear; return whether the store answered with the checksum of what was written.

        S3 answers a single request with the MD5 of its body, unless it encrypts by keys of its own (SSE-KMS, SSE-C).
        """
        if self._stream is not None:
            self._stream.__exit__(None, None, None)
            return False
        content = b"".join(self._held)
        e_tag = obstore.put(self._store, self._key, content, use_multipart=False)["e_tag"]
        return (e_tag or "").strip('"') == hashlib.md5(content, usedforsecurity=False).hexdigest()

    def abort(self, error: BaseException) -> None:
        """Drop what was written."""
        if self._stream is not None:
            self._stream.__exit__(type(error), error, error.__traceback__)

    def _write_held(self) -> None:
        if self._stream is None:
            self._stream = obstore.open_writer(
                self._store, self._key, buffer_size=_PART_BYTES, max_concurrency=_PARTS_UNDER_WAY
            ).__enter__()
        for part in self._held:
            self._stream.write(part)
        self._held = []
