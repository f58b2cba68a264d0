"""A bucket, or a prefix of one, as a store."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

import obstore
from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from obstore.store import ObjectStore

from features.pipelines.external.store import BESIDE, Found, StoreRefusedError
from jobs.errors import ServiceError, StoreAwayError

if TYPE_CHECKING:
    from obstore import ReadableFile

log = logging.getLogger(__name__)

_PART_BYTES = 8 << 20
_LISTED_AT_ONCE = 1000
_BUFFER_BYTES = 1 << 20
_ANSWER = re.compile(r"status code: (\d{3}[A-Za-z ]*)")
_URL = re.compile(r"\w+://[^\s)\"']+")
_NO_RIGHT = ("it answered 401", "it answered 403")


class Bucket:
    """A bucket, or a prefix of one."""

    def __init__(self, name: str, store: ObjectStore) -> None:
        self._name = name
        self._store = store

    def list(self, prefix: str) -> Iterator[Found]:
        with self._reported(prefix):
            # Object stores list below whole parts: a prefix without a final / is listed by its folder.
            folder = prefix.rpartition("/")[0]
            for page in obstore.list(self._store, folder or None, chunk_size=_LISTED_AT_ONCE):
                for entry in page:
                    key = entry["path"]
                    if key.startswith(prefix) and BESIDE not in key.split("/") and not key.endswith("/"):
                        version = entry.get("version") or entry.get("e_tag") or entry["last_modified"].isoformat()
                        yield Found(key=key, size_bytes=entry["size"], version=str(version))

    def open(self, key: str) -> IO[bytes]:
        with self._read(key):
            opened = obstore.open_reader(self._store, key)
            return io.BufferedReader(_Bytes(opened, lambda: self._read(key)), _BUFFER_BYTES)

    def read_small(self, key: str, max_bytes: int) -> bytes | None:
        with self._reported(key):
            try:
                size = obstore.head(self._store, key)["size"]
                if not size:
                    return b""
                return obstore.get_range(self._store, key, start=0, end=min(size, max_bytes)).to_bytes()
            except (FileNotFoundError, NotFoundError):
                self._require_missing(key)
                return None

    @contextmanager
    def create(self, key: str) -> Iterator[Any]:
        with self._reported(key):
            stream = obstore.open_writer(self._store, key, buffer_size=_PART_BYTES, max_concurrency=2)
            with stream as file:  # an error aborts it
                counted = _Counted(file)
                yield counted
            self._require_kept(key, size_bytes=counted.size_bytes)

    def move(self, key: str, to: str) -> bool:
        with self._reported(key):
            try:
                source = obstore.head(self._store, key)
            except (FileNotFoundError, NotFoundError):
                self._require_missing(key)
                return False
            obstore.copy(self._store, key, to)
            self._require_kept(to, size_bytes=source["size"], since=source["last_modified"])
            obstore.delete(self._store, key)
        return True

    def delete(self, key: str) -> None:
        with self._reported(key), suppress(FileNotFoundError, NotFoundError):
            obstore.delete(self._store, key)
        self._require_missing(key)

    def clear(self, folder: str) -> None:
        with self._reported(folder):
            for page in obstore.list(self._store, folder, chunk_size=_LISTED_AT_ONCE):
                obstore.delete(self._store, [entry["path"] for entry in page])

    def _require_kept(self, key: str, *, size_bytes: int, since: datetime | None = None) -> None:
        """Raise ServiceError unless a file was written: a proxy of another site answers writes with a page."""
        kept = obstore.head(self._store, key)
        if kept["size"] != size_bytes or (since is not None and kept["last_modified"] < since):
            raise ServiceError(f"the store {self._name!r} failed: it answered, but has not kept what was written")

    def _require_missing(self, key: str) -> None:
        """Raise ServiceError if there is such a file, or the bucket itself is missing: then it was another 404."""
        self._require_bucket()
        with self._reported(key):
            try:
                obstore.head(self._store, key)
            except (FileNotFoundError, NotFoundError):
                return
        raise ServiceError(f"the store {self._name!r} failed: it answered 404 for a file that is there")

    def _require_bucket(self) -> None:
        """Raise StoreAwayError if the bucket itself is missing: tenants' stores have no marker of ours."""
        try:
            for _ in obstore.list(self._store, chunk_size=1):
                break
        except (FileNotFoundError, NotFoundError):
            raise StoreAwayError(self._name) from None

    @contextmanager
    def _read(self, key: str) -> Iterator[None]:
        """Report errors of reading a file, which may be missing."""
        with self._reported(key):
            try:
                yield
            except (FileNotFoundError, NotFoundError) as error:
                self._require_missing(key)
                message = f"There is no {key!r} in the store {self._name!r}."
                raise StoreRefusedError(message, code="store_missing") from error

    @contextmanager
    def _reported(self, key: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            raise self._sentence(key, error) from error

    def _sentence(self, key: str, error: Exception) -> StoreRefusedError | ServiceError:
        """Return the error to raise; it depends on the answer as well, as some calls raise only a general class."""
        log.warning("store failed name=%s error=%s", self._name, str(error).split("\n")[0])
        problem = problem_of(error)
        # A bucket that is there lists and takes any key; some calls raise only a general class.
        if isinstance(error, (FileNotFoundError, NotFoundError)) or "NoSuchBucket" in str(error):
            return StoreAwayError(self._name)
        denied = (PermissionDeniedError, UnauthenticatedError, PermissionError)
        if isinstance(error, denied) or problem.startswith(_NO_RIGHT):
            return StoreRefusedError(
                f"The store {self._name!r} gives no right to {key!r} ({problem}); ask your operator for it."
            )
        return ServiceError(f"the store {self._name!r} failed: {problem}")


class _Counted:
    """A file that is being written."""

    def __init__(self, file: Any) -> None:
        self.size_bytes = 0
        self._file = file

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self.size_bytes += len(content)


class _Bytes(io.RawIOBase):
    """An object as a file of the standard library."""

    def __init__(self, file: ReadableFile, reported: Callable[[], AbstractContextManager[None]]) -> None:
        self._file = file
        self._reported = reported

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: Any, /) -> int:
        with self._reported():
            part = bytes(self._file.read(len(buffer)))
        buffer[: len(part)] = part
        return len(part)


def problem_of(error: Exception) -> str:
    """Return a store's message without its URL, which tenants must not see."""
    answer = _ANSWER.search(str(error))
    if answer is not None:
        return f"it answered {answer[1].strip()}"
    return _URL.sub("…", (str(error).strip() or type(error).__name__).split("\n")[0])[:300]
