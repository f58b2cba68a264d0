"""The object store: immutable contents of files, by key, in a local directory or any S3.

Streams with bounded memory; an object becomes visible as a whole or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Self

import obstore
from obstore.exceptions import BaseError

from jobs.errors import NotFoundError, ServiceError
from jobs.settings import MIB, Settings
from jobs.storage import local
from jobs.storage.access import StoreAccess
from jobs.storage.connection import AbsentError
from jobs.storage.object_writer import ObjectWriter

if TYPE_CHECKING:
    from obstore import ReadableFile

_READ_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object as listed by the store."""

    name: str
    modified_at: datetime


class Storage:
    """One object store, `file:///directory`, `s3://bucket/prefix` or `memory://` (private to this instance, for tests).

    Thread-safe. Every method raises ServiceError with one sentence when the store fails (full, no rights, not
    reachable, silent for `timeout_seconds`), and may take several timeouts: call none while a row is locked.

    A store that `is_marked` belongs to a database (`store_marker.bind`): NotFoundError is raised only while its marker
    can be read, ServiceError otherwise, and nothing is written to a folder without the marker.
    """

    def __init__(
        self, url: str, *, timeout_seconds: float = 10.0, max_retries: int = 3, is_marked: bool = False
    ) -> None:
        """Raises as `StoreAccess` does."""
        self.url = url
        self.access = StoreAccess(url, timeout_seconds=timeout_seconds, max_retries=max_retries, is_marked=is_marked)
        self._reported = self.access.reported

    @classmethod
    def of(cls, settings: Settings, *, is_marked: bool = True) -> Self:
        """Return the store that the settings name."""
        return cls(
            settings.storage_url,
            timeout_seconds=settings.storage_timeout_seconds,
            max_retries=settings.storage_retries,
            is_marked=is_marked,
        )

    def put(self, key: str, parts: bytes | Iterable[bytes]) -> int:
        """Store an object from bytes or a stream; return its size in bytes. A failing stream stores nothing."""
        with self.writer(key) as writer:
            for part in [parts] if isinstance(parts, bytes) else parts:
                writer.write(part)
        return writer.size_bytes

    @contextmanager
    def writer(self, key: str) -> Iterator[ObjectWriter]:
        """Open an object for writing; it appears when the block ends, and never where the block raises.

        At the end the marker and the object's size are checked: an object that a row then references is readable.
        """
        with self._reported():
            self._prepare(key)
        writer = ObjectWriter(self.access.store, key, self._reported)
        try:
            yield writer
        except BaseException as error:
            writer.abort(error)  # nothing appears
            raise
        with self._marker_read_beside(), self._reported():
            is_confirmed = writer.finish()
            self._confirm(key, writer.size_bytes, is_confirmed=is_confirmed)

    def _prepare(self, key: str) -> None:
        """Check that a write goes into the store, and not below its unmounted mount point."""
        if self.access.is_local:
            self.access.require_marker()
            self.access.folders.make_for(key)

    @contextmanager
    def _marker_read_beside(self) -> Iterator[None]:
        """Read a bucket's marker while the last bytes are in transfer; a folder's is read after them, at no cost."""
        if self.access.is_local or not self.access.is_marked:
            yield
            return
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="marker") as executor:
            reading = executor.submit(self.access.require_marker)
            yield
            reading.result()

    def _confirm(self, key: str, size_bytes: int, *, is_confirmed: bool = False) -> None:
        """Raise ServiceError unless a written object is in the store, and synced to its disk.

        `is_confirmed` if the store has answered with the checksum of what was written: its size need not be asked for.
        """
        if self.access.is_local:
            self._confirm_local(key)
        self.access.note_room()
        if is_confirmed or not self.access.is_marked:
            return
        stored_bytes = obstore.head(self.access.store, key)["size"]
        if stored_bytes != size_bytes:
            raise ServiceError(
                f"the object store {self.url} holds {stored_bytes} bytes of {size_bytes} that were written"
            )

    def _confirm_local(self, key: str) -> None:
        local.sync_object(self.access.folder, key)
        try:
            self.access.require_marker()
        except ServiceError:  # it lies below the mount point of a store that is not mounted
            (self.access.folder / key).unlink(missing_ok=True)
            raise

    def open_reader(self, key: str) -> ReadableFile:
        """Return a seekable file with `read`, `readline` and `seek`. Raises NotFoundError."""
        with self._reported(key):
            return obstore.open_reader(self.access.store, key)

    def read_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes start … end − 1, fewer where the object ends earlier. Raises NotFoundError."""
        if start >= end:
            return b""
        with self._reported(key):
            try:
                return obstore.get_range(self.access.store, key, start=start, end=end).to_bytes()
            except BaseError as error:
                # Only for this error: a store that fails otherwise, or hangs, is not asked for the size as well.
                if "range" in str(error).lower() and start >= self.size(key):
                    return b""
                raise

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]], *, gap_bytes: int = MIB) -> list[bytes]:
        """Return the bytes of ranges (start, end) inside an object; those at most `gap_bytes` apart share a request.

        Raises NotFoundError.
        """
        if not ranges:
            return []
        with self._reported(key):
            starts, ends = ([each[side] for each in ranges] for side in (0, 1))
            return [
                content.to_bytes()
                for content in obstore.get_ranges(self.access.store, key, starts=starts, ends=ends, coalesce=gap_bytes)
            ]

    def read_whole_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes start … end − 1. Raises NotFoundError also where the object ends earlier."""
        content = self.read_range(key, start, end)
        if len(content) < end - start:
            self.access.require_marker()
            raise NotFoundError(f"the object {key!r} ends before byte {end}", code="object_truncated")
        return content

    def iter_chunks(
        self, key: str, start: int = 0, *, end: int | None = None, chunk_bytes: int = _READ_BYTES
    ) -> Iterator[bytes]:
        """Yield the object from `start` to `end` (exclusive) in pieces of `chunk_bytes`. Raises NotFoundError.

        Each piece is its own request, so a slow reader meets no stream timeout.
        """
        size = self.size(key)
        stop = size if end is None else min(end, size)
        yield from self.iter_range(key, start, stop, chunk_bytes=chunk_bytes)

    def iter_range(self, key: str, start: int, end: int, *, chunk_bytes: int = _READ_BYTES) -> Iterator[bytes]:
        """As `iter_chunks`, for an object known to have `end` bytes: its size is not requested.

        Raises NotFoundError also where it has fewer.
        """
        for position in range(start, end, chunk_bytes):
            yield self.read_whole_range(key, position, min(position + chunk_bytes, end))

    def join(self, key: str, parts: Iterable[str], *, seen: Callable[[bytes], object] | None = None) -> None:
        """Concatenate these objects into one; `seen` is called with each piece.

        Without `seen`, a local store has the kernel copy them, which on some file systems copies nothing; obstore 0.12
        has no call for S3's own copies of parts. Raises NotFoundError where a part is gone: then nothing appears.
        """
        if seen is None and self.access.is_local:
            self._join_local(key, parts)
            return
        with self.writer(key) as writer:
            for part in parts:
                for piece in self.iter_chunks(part):
                    if seen is not None:
                        seen(piece)
                    writer.write(piece)

    def _join_local(self, key: str, parts: Iterable[str]) -> None:
        unfinished = self.access.folder / f"{key}#1"  # as obstore names its own: `iter_objects` lists it
        try:
            with self._reported():
                self._prepare(key)
                target = unfinished.open("xb", buffering=0)
            with target:
                for part in parts:
                    with self._reported(part):
                        local.append(self.access.folder / part, target)
                size_bytes = target.tell()
            with self._reported():
                unfinished.rename(self.access.folder / key)
                self._confirm(key, size_bytes)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise

    def size(self, key: str) -> int:
        """Return the size in bytes. Raises NotFoundError.

        Where another site answers for the store it may be the size of its page: use `has_whole` to be sure.
        """
        with self._reported(key):
            return obstore.head(self.access.store, key)["size"]

    def has_whole(self, key: str, size_bytes: int) -> bool:
        """Return whether an object is there with all of its bytes. Raises ServiceError where the store is away."""
        with suppress(NotFoundError):
            if self.size(key) == size_bytes:
                return True
            self.access.require_marker()
        return False

    def find_modified_at(self, key: str) -> datetime | None:
        """Return when an object was written, or None where it is absent: one request, without checking the marker."""
        with suppress(AbsentError), self._reported():
            return obstore.head(self.access.store, key)["last_modified"]
        return None

    def exists(self, key: str) -> bool:
        return self.find_modified_at(key) is not None

    def delete(self, key: str) -> None:
        """Delete an object, or a local part as `iter_objects` names it; a missing one is no error."""
        with suppress(NotFoundError), self._reported(key):
            if self.access.is_local and "#" in key:
                (self.access.folder / key).unlink()
            else:
                obstore.delete(self.access.store, key)

    def iter_objects(self) -> Iterator[StoredObject]:
        """Yield all objects, and in a local store also parts of unfinished ones: `<key>#<number>`."""
        with self._reported():
            if self.access.is_local:
                for name, modified_at in local.iter_files(self.access.folder):
                    yield StoredObject(name=name, modified_at=modified_at)
                return
            for block in obstore.list(self.access.store):
                yield from (StoredObject(name=entry["path"], modified_at=entry["last_modified"]) for entry in block)

    async def read_range_async(self, key: str, start: int, end: int) -> bytes:
        """As `read_range`, for a range inside the object, without a thread."""
        try:
            with self._reported():
                return (await obstore.get_range_async(self.access.store, key, start=start, end=end)).to_bytes()
        except AbsentError:
            await self.access.require_marker_async()
            raise self.access.no_object(key) from None

    async def delete_async(self, key: str) -> None:
        """As `delete`, without a thread."""
        try:
            with self._reported():
                await obstore.delete_async(self.access.store, key)
        except AbsentError:
            await self.access.require_marker_async()

    def check(self, *, below: str = "") -> None:
        """Write and delete a small object below a prefix. Raises ServiceError where that fails."""
        key = f"{below}{'/' if below else ''}.check-{os.getpid()}-{os.urandom(4).hex()}"
        self.put(key, b"tokenmill")
        self.delete(key)
