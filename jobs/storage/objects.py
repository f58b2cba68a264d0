"""The object store: immutable contents of files, by key, in a local directory or any S3.

Streams with bounded memory; an object becomes visible whole or not at all. Knows no table.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Self

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import LocalStore

from jobs.errors import NotFoundError
from jobs.settings import MIB, Settings
from jobs.storage.connection import open_store, store_failure

if TYPE_CHECKING:
    from obstore import ReadableFile, WritableFile

# Parts of 8 MiB, two under way: S3 allows 10,000 parts (80 GB), and one upload holds at most about 32 MiB.
_PART_BYTES = 8 * MIB
_PARTS_UNDER_WAY = 2
_READ_BYTES = 4 * MIB
_COPIED_AT_ONCE = 1024 * MIB
_NO_KERNEL_COPY = {errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}
_NO_OBJECT = ".look"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """What the store holds under a name."""

    name: str
    modified_at: datetime


class Storage:
    """One object store, `file:///directory`, `s3://bucket/prefix` or `memory://` (this object's own, for tests).

    Thread-safe. Every method raises ServiceError in one sentence when the store fails (full, no rights, not reachable,
    silent for `timeout_seconds`), and may take some times as long: call none while a row is locked.
    """

    def __init__(self, url: str, *, timeout_seconds: float = 10.0, max_retries: int = 3) -> None:
        self.url = url
        self._store = open_store(url, timeout_seconds=timeout_seconds, max_retries=max_retries)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the store that the settings name."""
        return cls(
            settings.storage_url,
            timeout_seconds=settings.storage_timeout_seconds,
            max_retries=settings.storage_retries,
        )

    def put(self, key: str, parts: bytes | Iterable[bytes]) -> int:
        """Store an object from bytes or a stream; return its size in bytes. A failing stream stores nothing."""
        with self.writer(key) as writer:
            for part in [parts] if isinstance(parts, bytes) else parts:
                writer.write(part)
        return writer.size_bytes

    @contextmanager
    def writer(self, key: str) -> Iterator[ObjectWriter]:
        """Open an object for writing; it appears when the block ends, and never does when the block raises."""
        with self._reported():
            stream = obstore.open_writer(
                self._store, key, buffer_size=_PART_BYTES, max_concurrency=_PARTS_UNDER_WAY
            ).__enter__()
        try:
            yield ObjectWriter(stream, self._reported)
        except BaseException as error:
            stream.__exit__(type(error), error, error.__traceback__)  # aborts: nothing appears
            raise
        with self._reported():
            stream.__exit__(None, None, None)
            if isinstance(self._store, LocalStore):
                self._sync(key)

    def open_reader(self, key: str) -> ReadableFile:
        """Return a seekable file with `read`, `readline` and `seek`. Raises NotFoundError."""
        with self._reported(key):
            return obstore.open_reader(self._store, key)

    def read_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes start … end − 1, fewer where the object ends earlier. Raises NotFoundError."""
        if start >= end:
            return b""
        with self._reported(key):
            try:
                return obstore.get_range(self._store, key, start=start, end=end).to_bytes()
            except BaseError as error:
                # A store that fails otherwise, or hangs, is not asked for the size as well.
                if "range" in str(error).lower() and start >= self.size(key):
                    return b""
                raise

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of ranges (start, end) that lie inside an object; what is close together is read at once.

        Raises NotFoundError.
        """
        if not ranges:
            return []
        with self._reported(key):
            starts, ends = ([each[side] for each in ranges] for side in (0, 1))
            return [found.to_bytes() for found in obstore.get_ranges(self._store, key, starts=starts, ends=ends)]

    def iter_chunks(
        self, key: str, start: int = 0, *, end: int | None = None, chunk_bytes: int = _READ_BYTES
    ) -> Iterator[bytes]:
        """Yield the object from `start` to `end` (exclusive) in pieces of `chunk_bytes`. Raises NotFoundError.

        Each piece is its own request, so a slow reader meets no time limit of a stream.
        """
        size = self.size(key)
        stop = size if end is None else min(end, size)
        yield from self.iter_range(key, start, stop, chunk_bytes=chunk_bytes)

    def iter_range(self, key: str, start: int, end: int, *, chunk_bytes: int = _READ_BYTES) -> Iterator[bytes]:
        """As `iter_chunks`, of an object that is known to have `end` bytes: the store is not asked for its size."""
        for position in range(start, end, chunk_bytes):
            yield self.read_range(key, position, min(position + chunk_bytes, end))

    def join(self, key: str, parts: Iterable[str], *, seen: Callable[[bytes], object] | None = None) -> None:
        """Store the contents of these objects, one after the other, as one; `seen` is handed each piece of it.

        Without `seen`, a local store has the kernel copy them, which on some file systems copies nothing; obstore 0.12
        has no call for S3's own copies of parts. Raises NotFoundError where a part is gone: then nothing appears.
        """
        if seen is None and isinstance(self._store, LocalStore):
            self._join_local(key, parts)
            return
        with self.writer(key) as writer:
            for part in parts:
                for piece in self.iter_chunks(part):
                    if seen is not None:
                        seen(piece)
                    writer.write(piece)

    def _join_local(self, key: str, parts: Iterable[str]) -> None:
        unfinished = self._folder() / f"{key}#1"  # as obstore calls its own: `iter_objects` lists it
        try:
            with self._reported():
                unfinished.parent.mkdir(parents=True, exist_ok=True)
                target = unfinished.open("xb", buffering=0)
            with target:
                for part in parts:
                    with self._reported(part), (self._folder() / part).open("rb", buffering=0) as source:
                        _append(source, target)
            with self._reported():
                unfinished.rename(self._folder() / key)
                self._sync(key)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise

    def size(self, key: str) -> int:
        """Return the size in bytes. Raises NotFoundError."""
        with self._reported(key):
            return obstore.head(self._store, key)["size"]

    def modified_at(self, key: str) -> datetime:
        """Return when the object was written. Raises NotFoundError."""
        with self._reported(key):
            return obstore.head(self._store, key)["last_modified"]

    def exists(self, key: str) -> bool:
        try:
            self.size(key)
        except NotFoundError:
            return False
        return True

    def delete(self, key: str) -> None:
        """Delete an object, or a local part as `iter_objects` names it; one that is gone already is no error."""
        with self._reported(), suppress(FileNotFoundError):
            if isinstance(self._store, LocalStore) and "#" in key:
                (self._folder() / key).unlink()
            else:
                obstore.delete(self._store, key)

    def iter_objects(self) -> Iterator[StoredObject]:
        """Yield all objects, and of a local store the parts of unfinished ones too: `<key>#<number>`."""
        with self._reported():
            if isinstance(self._store, LocalStore):
                yield from self._iter_local()
                return
            for block in obstore.list(self._store):
                yield from (StoredObject(name=found["path"], modified_at=found["last_modified"]) for found in block)

    def _iter_local(self) -> Iterator[StoredObject]:
        root = self._folder()
        for folder, _, names in os.walk(root):
            for path in (Path(folder) / name for name in names):
                with suppress(FileNotFoundError):  # gone since
                    modified_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
                    yield StoredObject(name=path.relative_to(root).as_posix(), modified_at=modified_at)

    def _folder(self) -> Path:
        assert isinstance(self._store, LocalStore)
        assert self._store.prefix is not None
        return Path(self._store.prefix)

    async def read_range_async(self, key: str, start: int, end: int) -> bytes:
        """As `read_range`, for a range inside the object, without a thread."""
        with self._reported(key):
            return (await obstore.get_range_async(self._store, key, start=start, end=end)).to_bytes()

    async def delete_async(self, key: str) -> None:
        """As `delete`, without a thread."""
        with self._reported(), suppress(FileNotFoundError):
            await obstore.delete_async(self._store, key)

    async def look_async(self) -> None:
        """Ask for an object that is not there; raise ServiceError unless the store answers, be it with a refusal."""
        with self._reported(), suppress(FileNotFoundError, PermissionDeniedError, UnauthenticatedError):
            await obstore.head_async(self._store, _NO_OBJECT)

    @property
    def unlisted_uploads(self) -> str | None:
        """Return under which prefix a bucket may keep parts of killed uploads that nobody can list from here.

        None where there is no such thing: a local store lists them, and Azure drops them after a week. obstore 0.12 has
        no call for it, and lends nobody the credentials that it finds.
        """
        scheme, _, rest = self.url.partition("://")
        if scheme not in {"s3", "s3a", "gs"}:
            return None
        _, _, prefix = rest.strip("/").partition("/")
        return f"{prefix}/" if prefix else ""

    def check(self) -> None:
        """Write and delete a small object. Raises ServiceError where that fails: for start-up and readiness."""
        key = f".check-{os.getpid()}-{os.urandom(4).hex()}"
        self.put(key, b"tokenmill")
        self.delete(key)

    def _sync(self, key: str) -> None:
        """Force a local object to disk: the row that names it is durable, so its bytes must be too."""
        path = self._folder() / key
        for target in (path, path.parent):
            descriptor = os.open(target, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    @contextmanager
    def _reported(self, key: str | None = None) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if key is None:
                raise store_failure(self.url, error) from error
            raise NotFoundError(f"there is no object {key!r} in {self.url}", code="object_missing") from None
        except (BaseError, OSError) as error:
            raise store_failure(self.url, error) from error


class ObjectWriter:
    """The open end of an object: `write` any number of times. Made by `Storage.writer`."""

    def __init__(self, stream: WritableFile, reported: Callable[[], AbstractContextManager[None]]) -> None:
        self._stream = stream
        self._reported = reported
        self.size_bytes = 0

    def write(self, part: bytes) -> None:
        with self._reported():
            self._stream.write(part)
        self.size_bytes += len(part)


def _append(source: FileIO, target: FileIO) -> None:
    """Copy what is left of a file behind another, in the kernel where that can."""
    try:
        while os.copy_file_range(source.fileno(), target.fileno(), _COPIED_AT_ONCE):
            pass
    except (AttributeError, OSError) as error:  # not on Linux, or not on this file system
        if isinstance(error, OSError) and error.errno not in _NO_KERNEL_COPY:
            raise
        shutil.copyfileobj(source, target, _READ_BYTES)
