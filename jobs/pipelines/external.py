"""The stores that operators register: a folder of this machine or a bucket. Files in, files out; knows no table.

A folder is entered part by part, and a symbolic link in it is never followed: whoever may write into it cannot lead
us, or another's rows, out of it.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

import obstore
from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from obstore.store import ObjectStore, from_url

from jobs.errors import InputError, ServiceError

if TYPE_CHECKING:
    from obstore import ReadableFile

log = logging.getLogger(__name__)

_ENV = "env:"
_PART_BYTES = 8 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LISTED_AT_ONCE = 1000
_MAX_DEPTH = 50
_BUFFER_BYTES = 1 << 20
_ANSWER = re.compile(r"status code: (\d{3}[A-Za-z ]*)")
_URL = re.compile(r"\w+://[^\s)\"']+")
_NO_RIGHT = ("it answered 401", "it answered 403")
BESIDE = "_temporary"
"""The part of a key below which files lie until they are published; sources leave it out."""


class StoreRefusedError(InputError):
    """The store will not do this however often it is asked: no right, no such file, a link that leads elsewhere."""

    code = "store_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A file of a store."""

    key: str
    size_bytes: int
    version: str
    """Another one once it has changed."""


class ExternalStore(Protocol):
    """What runs do with a store. Raises StoreRefusedError, and ServiceError where another try may help."""

    def list(self, prefix: str) -> Iterator[Found]:
        """Yield the files whose keys begin with a prefix, which ends in / or names one file, in order of their keys."""

    def open(self, key: str) -> IO[bytes]:
        """Open a file to read; it can seek."""

    def read_small(self, key: str, max_bytes: int) -> bytes | None:
        """Return the first bytes of a file, None where there is none."""

    def create(self, key: str) -> Any:
        """Return a context in which a file is written; it appears, whole, when the context ends without an error."""

    def move(self, key: str, to: str) -> bool:
        """Give a file another key, in the place of what is there; False where it is not there (any more)."""

    def delete(self, key: str) -> None:
        """Delete a file; one that is gone is no error."""

    def clear(self, folder: str) -> None:
        """Delete all that is below a folder, hidden files too."""


def open_store(name: str, url: str, options: Mapping[str, str], *, timeout_seconds: float) -> ExternalStore:
    """Open a registered store. Raises InputError where its URL or an option is wrong."""
    scheme, separator, rest = url.partition("://")
    if scheme == "file" and separator:
        if not rest.startswith("/") or options:
            raise InputError(f"The store {name!r} is {url!r}; give file:///folder and no options.", param="url")
        return LocalFolder(name, Path(rest))
    if scheme not in {"s3", "s3a", "gs", "az"} or not separator:
        raise InputError(
            f"The store {name!r} is {url!r}; give file:///absolute/folder or s3://bucket/prefix (or gs://, az://).",
            param="url",
        )
    given = {key: _value(name, key, value) for key, value in options.items()}
    silence = timedelta(seconds=timeout_seconds)
    is_plain = given.pop("allow_http", "false").lower() == "true"
    client: Any = {"connect_timeout": silence, "read_timeout": silence, "timeout": 6 * silence, "allow_http": is_plain}
    retry: Any = {"max_retries": 3, "retry_timeout": silence}
    try:
        store = from_url(url, client_options=client, retry_config=retry, **cast(Any, given))
    except (BaseError, ValueError, TypeError) as error:
        raise InputError(f"The store {name!r} cannot be opened: {_problem(error)}.", param="url") from None
    return Bucket(name, store)


def _value(name: str, key: str, value: str) -> str:
    if not value.startswith(_ENV):
        return value
    variable = value.removeprefix(_ENV)
    found = os.environ.get(variable)
    if found is None:
        raise InputError(f"The store {name!r} takes {key} from {variable}, which is not set for this process.")
    return found


def _problem(error: Exception) -> str:
    """Return what a store said without its URL, which tenants are not shown."""
    answer = _ANSWER.search(str(error))
    if answer is not None:
        return f"it answered {answer[1].strip()}"
    return _URL.sub("…", (str(error).strip() or type(error).__name__).split("\n")[0])[:300]


# --- a folder --------------------------------------------------------------------------------------------------------


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, name: str, root: Path) -> None:
        self._name = name
        self._root = root

    def list(self, prefix: str) -> Iterator[Found]:
        folder, _, last = prefix.rpartition("/")
        with self._reported(prefix):
            try:
                descriptor = self._enter(folder)
            except FileNotFoundError:
                return
            try:
                yield from self._walk(descriptor, f"{folder}/" if folder else "", only=last or None)
            finally:
                os.close(descriptor)

    def _walk(self, descriptor: int, path: str, *, only: str | None = None, depth: int = 0) -> Iterator[Found]:
        if depth > _MAX_DEPTH:
            raise StoreRefusedError(f"{path[:100]!r}… of the store {self._name!r} is deeper than {_MAX_DEPTH} folders.")
        with os.scandir(descriptor) as entries:
            names = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        for name, is_folder in names:
            if name == BESIDE or name.startswith(".") or (only is not None and name != only):
                continue
            if not is_folder:
                try:
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                except FileNotFoundError:
                    continue  # renamed or deleted since its folder was read: as if it had been before
                if stat.S_ISREG(status.st_mode):
                    yield _found(path + name, status)
                continue
            if only is None:
                try:
                    below = os.open(name, _FOLDER, dir_fd=descriptor)
                except FileNotFoundError:
                    continue
                try:
                    yield from self._walk(below, f"{path}{name}/", depth=depth + 1)
                finally:
                    os.close(below)

    def open(self, key: str) -> IO[bytes]:
        with self._reported(key):
            return os.fdopen(self._open(key, os.O_RDONLY), "rb")

    def read_small(self, key: str, max_bytes: int) -> bytes | None:
        with self._reported(key):
            try:
                with os.fdopen(self._open(key, os.O_RDONLY), "rb") as file:
                    return file.read(max_bytes)
            except FileNotFoundError:
                return None

    @contextmanager
    def create(self, key: str) -> Iterator[IO[bytes]]:
        folder, _, name = key.rpartition("/")
        unfinished = f".{name}.{os.urandom(6).hex()}"  # its own: two may write the same file, one of them given up
        with self._reported(key):
            descriptor = self._enter(folder, make=True)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
                try:
                    with os.fdopen(os.open(unfinished, flags, 0o644, dir_fd=descriptor), "wb") as file:
                        yield file
                        file.flush()
                        os.fsync(file.fileno())
                    os.rename(unfinished, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
                except Exception:
                    with suppress(FileNotFoundError):  # where it could not even be made
                        os.unlink(unfinished, dir_fd=descriptor)
                    raise
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def move(self, key: str, to: str) -> bool:
        source, _, name = key.rpartition("/")
        target, _, new_name = to.rpartition("/")
        with self._reported(key):
            try:
                before = self._enter(source)
            except FileNotFoundError:
                return False
            after = self._enter(target, make=True)
            try:
                os.rename(name, new_name, src_dir_fd=before, dst_dir_fd=after)
                os.fsync(after)
            except FileNotFoundError:
                return False
            finally:
                os.close(before)
                os.close(after)
        return True

    def delete(self, key: str) -> None:
        folder, _, name = key.rpartition("/")
        with self._reported(key), suppress(FileNotFoundError):
            descriptor = self._enter(folder)
            try:
                os.unlink(name, dir_fd=descriptor)
            finally:
                os.close(descriptor)

    def clear(self, folder: str) -> None:
        above, _, name = folder.rpartition("/")
        with self._reported(folder), suppress(FileNotFoundError):
            descriptor = self._enter(above)
            try:
                shutil.rmtree(name, dir_fd=descriptor)  # which follows no link, and says so
            finally:
                os.close(descriptor)

    def _open(self, key: str, flags: int) -> int:
        folder, _, name = key.rpartition("/")
        descriptor = self._enter(folder)
        try:
            # Not blocking: a pipe that somebody made there would have us wait for its other end.
            opened = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise StoreRefusedError(f"{key!r} of the store {self._name!r} is no file.")
        return opened

    def _enter(self, folder: str, *, make: bool = False) -> int:
        """Return a descriptor of a folder below the root, entered part by part without following a link."""
        try:
            descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise StoreRefusedError(
                f"The folder of the store {self._name!r} is not there; ask your operator.", code="store_missing"
            ) from None
        for part in folder.split("/") if folder else []:
            try:
                if part in ("", ".", ".."):
                    raise StoreRefusedError(f"{folder!r} leads out of the store {self._name!r}.")
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=descriptor)
                below = os.open(part, _FOLDER, dir_fd=descriptor)
            finally:
                os.close(descriptor)
            descriptor = below
        return descriptor

    @contextmanager
    def _reported(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise StoreRefusedError(f"There is no {key!r} in the store {self._name!r}.", code="store_missing") from None
        except PermissionError:
            raise StoreRefusedError(
                f"The store {self._name!r} gives no right to {key!r}; ask your operator for it."
            ) from None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise StoreRefusedError(
                    f"{key!r} of the store {self._name!r} is, or lies behind, a symbolic link: none is followed."
                ) from None
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise ServiceError(f"the store {self._name!r} is full; free some space", code="storage_full") from error
            raise ServiceError(f"the store {self._name!r} failed: {error.strerror or error}") from error


def _found(key: str, status: os.stat_result) -> Found:
    return Found(key=key, size_bytes=status.st_size, version=f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}")


# --- a bucket --------------------------------------------------------------------------------------------------------


class Bucket:
    """A bucket, or what begins with a prefix of one."""

    def __init__(self, name: str, store: ObjectStore) -> None:
        self._name = name
        self._store = store

    def list(self, prefix: str) -> Iterator[Found]:
        with self._reported(prefix):
            # A store lists below whole parts: what a prefix without / at its end names is in its folder.
            folder = prefix.rpartition("/")[0]
            for page in obstore.list(self._store, folder or None, chunk_size=_LISTED_AT_ONCE):
                for found in page:
                    key = found["path"]
                    if key.startswith(prefix) and BESIDE not in key.split("/") and not key.endswith("/"):
                        version = found.get("version") or found.get("e_tag") or found["last_modified"].isoformat()
                        yield Found(key=key, size_bytes=found["size"], version=str(version))

    def open(self, key: str) -> IO[bytes]:
        with self._reported(key):
            opened = obstore.open_reader(self._store, key)
            return io.BufferedReader(_Bytes(opened, lambda: self._reported(key)), _BUFFER_BYTES)

    def read_small(self, key: str, max_bytes: int) -> bytes | None:
        with self._reported(key):
            try:
                size = obstore.head(self._store, key)["size"]
                if not size:
                    return b""
                return obstore.get_range(self._store, key, start=0, end=min(size, max_bytes)).to_bytes()
            except (FileNotFoundError, NotFoundError):
                return None

    @contextmanager
    def create(self, key: str) -> Iterator[Any]:
        with self._reported(key):
            stream = obstore.open_writer(self._store, key, buffer_size=_PART_BYTES, max_concurrency=2)
            with stream as file:  # an error aborts it
                yield file

    def move(self, key: str, to: str) -> bool:
        with self._reported(key):
            try:
                obstore.copy(self._store, key, to)
            except (FileNotFoundError, NotFoundError):
                return False
            obstore.delete(self._store, key)
        return True

    def delete(self, key: str) -> None:
        with self._reported(key), suppress(FileNotFoundError, NotFoundError):
            obstore.delete(self._store, key)

    def clear(self, folder: str) -> None:
        with self._reported(folder):
            for page in obstore.list(self._store, folder, chunk_size=_LISTED_AT_ONCE):
                obstore.delete(self._store, [found["path"] for found in page])

    @contextmanager
    def _reported(self, key: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            raise self._sentence(key, error) from error

    def _sentence(self, key: str, error: Exception) -> StoreRefusedError | ServiceError:
        """Return what to raise: by the answer too, as some calls know no narrower class of error."""
        log.warning("store failed name=%s error=%s", self._name, str(error).split("\n")[0])
        problem = _problem(error)
        if "NoSuchBucket" in str(error):
            return StoreRefusedError(
                f"The bucket of the store {self._name!r} is not there; ask your operator.", code="store_missing"
            )
        if isinstance(error, (FileNotFoundError, NotFoundError)):
            return StoreRefusedError(f"There is no {key!r} in the store {self._name!r}.", code="store_missing")
        denied = (PermissionDeniedError, UnauthenticatedError, PermissionError)
        if isinstance(error, denied) or problem.startswith(_NO_RIGHT):
            return StoreRefusedError(
                f"The store {self._name!r} gives no right to {key!r} ({problem}); ask your operator for it."
            )
        return ServiceError(f"the store {self._name!r} failed: {problem}")


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
